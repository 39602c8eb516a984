//! Signing at half the price, where the processor allows it.
//!
//! An Ed25519 signature is a function of key and message, so it does not matter to anybody who made it. A library whose arithmetic
//! on the curve is machine code that was proven right does in 9 µs what takes the portable one 18, a quarter of what a commit
//! computes; but it wants certain instructions of its processor, and panics without them. So it is asked here alone, after a look.

pub(super) use of_this_machine::Swift;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod of_this_machine {
    use ed25519_dalek::{Signer as _, SigningKey};
    use graviola::signing::eddsa::Ed25519SigningKey;

    /// A key in the hands of the faster library; wiped when dropped.
    pub(in crate::keys) struct Swift(Ed25519SigningKey);

    impl Swift {
        /// The same key, if this processor can sign with it so: what it signs once is compared with what `key` signs.
        pub(in crate::keys) fn new(key: &SigningKey) -> Option<Self> {
            if !has_instructions() {
                return None;
            }
            let swift = Self(Ed25519SigningKey::from_bytes(key.as_bytes()).ok()?);
            let trial = b"selvedge/trial";
            (swift.sign(trial) == key.sign(trial).to_bytes()).then_some(swift)
        }

        /// The 64 bytes that RFC 8032 says.
        pub(in crate::keys) fn sign(&self, message: &[u8]) -> [u8; 64] {
            self.0.sign(message)
        }
    }

    /// Whether the processor has every instruction that the library insists on.
    #[cfg(target_arch = "x86_64")]
    fn has_instructions() -> bool {
        use std::arch::is_x86_feature_detected as has;
        has!("aes") && has!("pclmulqdq") && has!("bmi1") && has!("bmi2") && has!("adx") && has!("avx") && has!("avx2")
    }

    /// Whether the processor has every instruction that the library insists on.
    #[cfg(target_arch = "aarch64")]
    fn has_instructions() -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod of_this_machine {
    use std::convert::Infallible;

    /// No key: there is no faster library for this processor.
    pub(in crate::keys) struct Swift(Infallible);

    impl Swift {
        pub(in crate::keys) fn new(_: &ed25519_dalek::SigningKey) -> Option<Self> {
            None
        }

        pub(in crate::keys) fn sign(&self, _: &[u8]) -> [u8; 64] {
            match self.0 {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::{Signer as _, SigningKey};
    use proptest::prelude::*;

    use super::Swift;

    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";

    /// Processors of the last ten years have what it wants; whoever tests on an older one loses the speed, not the test.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_processor_of_today_signs_the_faster_way() {
        use std::arch::is_x86_feature_detected as has;
        let is_of_today = has!("avx2") && has!("bmi2") && has!("adx") && has!("aes") && has!("pclmulqdq");
        let signer = crate::Signer::from_pem(PEM).unwrap();
        assert_eq!(signer.swift.is_some(), is_of_today);
    }

    proptest! {
        /// Messages around the blocks of SHA-512, and keys of every kind.
        #[test]
        fn both_libraries_sign_alike(secret: [u8; 32], message in prop::collection::vec(any::<u8>(), 0..400)) {
            let key = SigningKey::from_bytes(&secret);
            let Some(swift) = Swift::new(&key) else {
                return Ok(());
            };
            prop_assert_eq!(swift.sign(&message), key.sign(&message).to_bytes());
        }
    }
}
