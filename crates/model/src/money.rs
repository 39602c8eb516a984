//! Amounts of money: dollars in whole billionths.
//!
//! Defines the amount and its written forms; [`crate::account`] decides who may spend it.
//!
//! - An amount is never negative and never a float; a sum that doesn't fit is refused, never wrapped.
//! - Where amounts are recorded they are integers of nano-dollars. Where people read or write them they are decimals:
//!   [`Money`] as text, [`decimal`] as a JSON number.
//! - A JSON number is a float to most readers. Written by [`decimal`] and read back, an amount is the same up to
//!   2^23 dollars, which is 8,388,608; above that the steps between floats are larger than a nano-dollar.

use std::fmt;
use std::str::FromStr;

use serde::de::{Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const NANOS_PER_DOLLAR: i64 = 1_000_000_000;
const FRACTION_DIGITS: usize = 9;

/// An amount of nano-dollars, zero or more. Written as an integer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Money(i64);

/// A text or number that is not an amount of money.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not an amount of dollars such as 0.25: {why}", .text.escape_debug())]
pub struct InvalidMoney {
    /// The beginning of the text.
    pub text: String,
    /// The rule it breaks.
    pub why: &'static str,
}

impl InvalidMoney {
    fn new(text: &str, why: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), why }
    }
}

const NEGATIVE: &str = "it is negative";
const TOO_LARGE: &str = "it is too large";

impl Money {
    /// Zero.
    pub const ZERO: Self = Self(0);
    /// The largest amount, about 9.2 billion dollars.
    pub const MAX: Self = Self(i64::MAX);

    /// The amount of `nanos` nano-dollars, which must not be negative.
    pub fn from_nanos(nanos: i64) -> Result<Self, InvalidMoney> {
        if nanos < 0 { Err(InvalidMoney::new(&nanos.to_string(), NEGATIVE)) } else { Ok(Self(nanos)) }
    }

    /// The amount as nano-dollars.
    pub fn nanos(self) -> i64 {
        self.0
    }

    /// An equal share of it for `among` recipients, rounded down.
    #[must_use]
    pub fn share(self, among: u64) -> Self {
        Self(self.0 / i64::try_from(among.max(1)).unwrap_or(i64::MAX))
    }

    /// A decimal number of dollars in JSON, as limits are shown.
    pub fn to_json(self) -> serde_json::Value {
        // Serialising a finite number can't fail.
        decimal::serialize(&self, serde_json::value::Serializer).unwrap_or_default()
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// The sum, if it fits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    /// The difference, if it isn't negative.
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        (self >= other).then(|| Self(self.0 - other.0))
    }

    /// The sum, or the largest amount.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        self.checked_add(other).unwrap_or(Self::MAX)
    }

    /// The difference, or zero.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        self.checked_sub(other).unwrap_or(Self::ZERO)
    }
}

/// A decimal with two digits after the point, and more only if they are not zero: `0.10`, `0.000000001`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:09}", self.0 % NANOS_PER_DOLLAR);
        let (cents, rest) = digits.split_at(2);
        f.pad(&format!("{}.{cents}{}", self.0 / NANOS_PER_DOLLAR, rest.trim_end_matches('0')))
    }
}

/// Reads a decimal such as `1` or `0.25`, without sign or exponent and with at most nine digits after the point.
impl FromStr for Money {
    type Err = InvalidMoney;

    fn from_str(text: &str) -> Result<Self, InvalidMoney> {
        let decimal = Decimal::parse(text)?;
        if decimal.fraction.len() > FRACTION_DIGITS {
            return Err(InvalidMoney::new(text, "it has more than nine digits after the point"));
        }
        decimal.round()
    }
}

/// A text of digits, with or without a point between them.
struct Decimal<'a> {
    text: &'a str,
    whole: &'a str,
    fraction: &'a str,
}

impl<'a> Decimal<'a> {
    fn parse(text: &'a str) -> Result<Self, InvalidMoney> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) {
            return Err(InvalidMoney::new(text, "only digits with a point between them are allowed"));
        }
        Ok(Self { text, whole, fraction })
    }

    /// The nearest nano-dollar; halves are rounded up.
    fn round(&self) -> Result<Money, InvalidMoney> {
        let digit = |index: usize| i64::from(self.fraction.as_bytes().get(index).map_or(0, |byte| byte - b'0'));
        let nanos = (0..FRACTION_DIGITS).fold(0, |nanos, index| nanos * 10 + digit(index));
        let carry = i64::from(digit(FRACTION_DIGITS) >= 5);
        let dollars = self.whole.parse::<i64>().ok();
        let total = dollars.and_then(|dollars| dollars.checked_mul(NANOS_PER_DOLLAR)?.checked_add(nanos + carry));
        total.map(Money).ok_or_else(|| InvalidMoney::new(self.text, TOO_LARGE))
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NanosVisitor;

        impl Visitor<'_> for NanosVisitor {
            type Value = Money;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount as a non-negative integer of nano-dollars")
            }

            fn visit_i64<E: serde::de::Error>(self, nanos: i64) -> Result<Money, E> {
                Money::from_nanos(nanos).map_err(|_| E::invalid_value(Unexpected::Signed(nanos), &self))
            }

            fn visit_u64<E: serde::de::Error>(self, nanos: u64) -> Result<Money, E> {
                let nanos = i64::try_from(nanos).map_err(|_| E::invalid_value(Unexpected::Unsigned(nanos), &self))?;
                Ok(Money(nanos))
            }
        }

        deserializer.deserialize_i64(NanosVisitor)
    }
}

/// Dollars as a JSON number, for fields that people read and write: `#[serde(with = "money::decimal")]`.
///
/// Reads a number or a decimal text, both rounded to the nearest nano-dollar.
pub mod decimal {
    use super::*;

    /// Writes dollars as a number.
    pub fn serialize<S: Serializer>(money: &Money, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(money.0 as f64 / NANOS_PER_DOLLAR as f64)
    }

    /// Reads dollars from a number or a decimal text.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        deserializer.deserialize_any(DollarsVisitor)
    }

    struct DollarsVisitor;

    impl Visitor<'_> for DollarsVisitor {
        type Value = Money;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an amount of dollars as a number or as decimal text")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Money, E> {
            Decimal::parse(text).and_then(|decimal| decimal.round()).map_err(E::custom)
        }

        fn visit_u64<E: serde::de::Error>(self, dollars: u64) -> Result<Money, E> {
            self.visit_str(&dollars.to_string())
        }

        fn visit_i64<E: serde::de::Error>(self, dollars: i64) -> Result<Money, E> {
            let dollars =
                u64::try_from(dollars).map_err(|_| E::custom(InvalidMoney::new(&dollars.to_string(), NEGATIVE)))?;
            self.visit_u64(dollars)
        }

        fn visit_f64<E: serde::de::Error>(self, dollars: f64) -> Result<Money, E> {
            if !dollars.is_finite() {
                return Err(E::custom(InvalidMoney::new(&dollars.to_string(), "it is not finite")));
            }
            if dollars < 0.0 {
                return Err(E::custom(InvalidMoney::new(&dollars.to_string(), NEGATIVE)));
            }
            // The shortest decimal of this float is most likely the text it was written as, so it is parsed as that text.
            self.visit_str(&dollars.abs().to_string())
        }
    }

    /// The same for an amount that may be absent: `#[serde(default, with = "money::decimal::option")]`.
    pub mod option {
        use super::*;

        /// Writes dollars as a number, or null.
        pub fn serialize<S: Serializer>(money: &Option<Money>, serializer: S) -> Result<S::Ok, S::Error> {
            match money {
                Some(money) => super::serialize(money, serializer),
                None => serializer.serialize_none(),
            }
        }

        /// Reads dollars from a number or a decimal text; null is `None`.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Money>, D::Error> {
            #[derive(Deserialize)]
            struct Dollars(#[serde(with = "super")] Money);
            Ok(Option::<Dollars>::deserialize(deserializer)?.map(|Dollars(money)| money))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Shown {
        #[serde(with = "decimal")]
        spend: Money,
        #[serde(default, with = "decimal::option")]
        max: Option<Money>,
    }

    fn nanos(nanos: i64) -> Money {
        Money::from_nanos(nanos).unwrap()
    }

    fn read_dollars(spend: Value) -> Result<Money, serde_json::Error> {
        serde_json::from_value::<Shown>(json!({"spend": spend})).map(|shown| shown.spend)
    }

    #[test]
    fn money_is_shown_with_as_many_digits_as_needed_and_at_least_two() {
        for (amount, text) in [
            (0, "0.00"),
            (1, "0.000000001"),
            (100_000_000, "0.10"),
            (123_000_000, "0.123"),
            (1_000_000_000, "1.00"),
            (1_050_000_000, "1.05"),
            (i64::MAX, "9223372036.854775807"),
        ] {
            assert_eq!(nanos(amount).to_string(), text);
            assert_eq!(text.parse(), Ok(nanos(amount)));
        }
        assert_eq!("007.5".parse(), Ok(nanos(7_500_000_000)));
    }

    #[test]
    fn texts_that_are_not_plain_decimals_are_refused() {
        for bad in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "0x1",
            " 1",
            "1 ",
            "1.2.3",
            "$1",
            "NaN",
            "inf",
            "1_000",
            "١",
            "0.0000000001",
            "9223372036.854775808",
            "99999999999999999999",
        ] {
            assert!(bad.parse::<Money>().is_err(), "{bad:?}");
        }
        assert!(Money::from_nanos(-1).is_err());
    }

    #[test]
    fn recorded_money_is_an_integer() {
        assert_eq!(serde_json::to_value(nanos(5)).unwrap(), json!(5));
        assert_eq!(serde_json::from_str::<Money>("9223372036854775807").unwrap(), Money::MAX);
        for bad in ["-1", "1.0", "1.5", "1e3", r#""1""#, "null", "9223372036854775808"] {
            assert!(serde_json::from_str::<Money>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn shown_money_is_a_number_and_read_from_number_or_text() {
        let shown = Shown { spend: nanos(20_000_000), max: Some(nanos(1_500_000_000)) };
        assert_eq!(serde_json::to_string(&shown).unwrap(), r#"{"spend":0.02,"max":1.5}"#);
        for (spend, amount) in [
            (json!(0.02), 20_000_000),
            (json!("0.02"), 20_000_000),
            (json!(2), 2_000_000_000),
            (json!(1e-9), 1),
            (json!(0.1 + 0.2), 300_000_000),
            (json!("0.0000000014"), 1),
            (json!("0.0000000015"), 2),
            (json!(0.9999999999), 1_000_000_000),
            (json!(-0.0), 0),
        ] {
            assert_eq!(read_dollars(spend.clone()).unwrap(), nanos(amount), "{spend}");
        }
        assert_eq!(serde_json::from_str::<Shown>(r#"{"spend":0,"max":null}"#).unwrap().max, None);
        assert_eq!(serde_json::from_str::<Shown>(r#"{"spend":0,"max":"0.5"}"#).unwrap().max, Some(nanos(500_000_000)));
    }

    #[test]
    fn shown_money_that_is_negative_or_too_large_is_refused() {
        for bad in [json!(-1), json!(-0.5), json!(1e10), json!(1e300), json!(u64::MAX), json!("1e3"), json!(null)] {
            assert!(read_dollars(bad.clone()).is_err(), "{bad}");
        }
        let not_finite = serde::de::value::F64Deserializer::<serde::de::value::Error>::new(f64::INFINITY);
        assert!(decimal::deserialize(not_finite).is_err());
    }

    #[test]
    fn sums_that_do_not_fit_are_refused() {
        assert_eq!(Money::MAX.checked_add(nanos(1)), None);
        assert_eq!(nanos(1).checked_sub(nanos(2)), None);
        assert_eq!(nanos(2).checked_sub(nanos(2)), Some(Money::ZERO));
        assert_eq!(nanos(1).saturating_sub(nanos(2)), Money::ZERO);
    }

    /// These are the last amounts before floats are wider apart than a nano-dollar.
    #[test]
    fn shown_money_is_exact_up_to_two_to_the_twenty_third_dollars() {
        let limit = (1 << 23) * NANOS_PER_DOLLAR;
        for amount in (limit - 5_000..=limit).map(nanos) {
            let written = decimal::serialize(&amount, serde_json::value::Serializer).unwrap();
            assert_eq!(decimal::deserialize(written).unwrap(), amount);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn money_survives_text_and_json(amount in 0..=i64::MAX) {
            let money = nanos(amount);
            prop_assert_eq!(money.to_string().parse(), Ok(money));
            prop_assert_eq!(serde_json::from_value::<Money>(serde_json::to_value(money).unwrap()).unwrap(), money);
        }

        #[test]
        fn shown_money_survives_json_text(amount in 0i64..1_000_000_000_000_000) {
            let shown = Shown { spend: nanos(amount), max: Some(nanos(amount)) };
            let text = serde_json::to_string(&shown).unwrap();
            prop_assert_eq!(serde_json::from_str::<Shown>(&text).unwrap(), shown);
        }
    }
}
