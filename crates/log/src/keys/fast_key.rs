//! Faster signing, where the processor supports it.
//!
//! An Ed25519 signature is a function of key and message, so both libraries make the same one. The library with formally verified machine
//! code for the curve arithmetic takes 9 µs where the portable one takes 18, which is a quarter of a commit's computation. But it needs
//! certain processor instructions, and panics without them. So it is used only here, after a check.

pub(super) use platform::FastKey;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod platform {
    use ed25519_dalek::{Signer as _, SigningKey};
    use graviola::signing::eddsa::Ed25519SigningKey;

    /// A key for the faster library; wiped when dropped.
    pub(in crate::keys) struct FastKey(Ed25519SigningKey);

    impl FastKey {
        /// The same key, if this processor supports it: one trial signature is compared with that of `key`.
        pub(in crate::keys) fn new(key: &SigningKey) -> Option<Self> {
            if !has_instructions() {
                return None;
            }
            let fast = Self(Ed25519SigningKey::from_bytes(key.as_bytes()).ok()?);
            let trial = b"selvedge/trial";
            (fast.sign(trial) == key.sign(trial).to_bytes()).then_some(fast)
        }

        /// The 64 bytes of RFC 8032.
        pub(in crate::keys) fn sign(&self, message: &[u8]) -> [u8; 64] {
            self.0.sign(message)
        }
    }

    /// Whether the processor has every instruction that the library needs.
    #[cfg(target_arch = "x86_64")]
    fn has_instructions() -> bool {
        use std::arch::is_x86_feature_detected as has;
        has!("aes") && has!("pclmulqdq") && has!("bmi1") && has!("bmi2") && has!("adx") && has!("avx") && has!("avx2")
    }

    /// Whether the processor has every instruction that the library needs.
    #[cfg(target_arch = "aarch64")]
    fn has_instructions() -> bool {
        use std::arch::is_aarch64_feature_detected as has;
        has!("neon") && has!("aes") && has!("pmull") && has!("sha2")
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod platform {
    use std::convert::Infallible;

    /// Never constructed: there is no faster library for this processor.
    pub(in crate::keys) struct FastKey(Infallible);

    impl FastKey {
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

    use super::FastKey;

    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";

    /// Processors of the last ten years have these instructions; on an older one only the speed is lost, and the test passes.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_current_processor_signs_the_faster_way() {
        use std::arch::is_x86_feature_detected as has;
        let is_current = has!("avx2") && has!("bmi2") && has!("adx") && has!("aes") && has!("pclmulqdq");
        let signer = crate::Signer::from_pem(PEM).unwrap();
        assert_eq!(signer.fast.is_some(), is_current);
    }

    proptest! {
        /// Messages around the block size of SHA-512, and random keys.
        #[test]
        fn both_libraries_make_the_same_signature(secret: [u8; 32], message in prop::collection::vec(any::<u8>(), 0..400)) {
            let key = SigningKey::from_bytes(&secret);
            let Some(fast) = FastKey::new(&key) else {
                return Ok(());
            };
            prop_assert_eq!(fast.sign(&message), key.sign(&message).to_bytes());
        }
    }
}
