//! The permissions of a directive or an agent: what it may call, and which risks it acknowledges.

use std::fmt;

use selvedge_model::tool::Risk;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Capabilities, TOKENS_MAX};

/// The acknowledgement of a class of risk, with its reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Acknowledgement {
    /// The class.
    pub risk: Risk,
    /// Why the risk is accepted.
    pub why: String,
}

impl Acknowledgement {
    /// Parses one; older names of the classes are accepted too.
    pub fn new(risk: &str, why: &str) -> Result<Self, String> {
        let risk = match risk {
            "safe" => Risk::Safe,
            "write" => Risk::Write,
            "external" | "elevated" => Risk::External,
            "dangerous" | "unrestricted" => Risk::Dangerous,
            other => {
                return Err(format!(
                    "`{}` is not a risk: use safe, write, external or dangerous",
                    other.escape_debug()
                ));
            }
        };
        let why = why.trim();
        if why.is_empty() {
            return Err("an acknowledgement needs a reason".to_owned());
        }
        Ok(Self { risk, why: why.to_owned() })
    }
}

impl<'de> Deserialize<'de> for Acknowledgement {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            risk: String,
            why: String,
        }
        let Fields { risk, why } = Fields::deserialize(deserializer)?;
        Self::new(&risk, &why).map_err(D::Error::custom)
    }
}

/// The permissions of a directive or an agent: what it may call, and which risks it acknowledges.
///
/// Written as one token, as a list of tokens, or as `{allow: […], acknowledge: [{risk, why}]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Permissions {
    /// What may be called.
    pub allow: Capabilities,
    /// Which risks are acknowledged.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acknowledge: Vec<Acknowledgement>,
}

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Fields {
            #[serde(default)]
            allow: Capabilities,
            #[serde(default)]
            acknowledge: Vec<Acknowledgement>,
        }

        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = Permissions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a capability, a list of them, or `allow` and `acknowledge`")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Permissions, E> {
                let token = text.parse().map_err(E::custom)?;
                Ok(Permissions { allow: Capabilities::new([token]), acknowledge: Vec::new() })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Permissions, A::Error> {
                let mut tokens = Vec::new();
                while let Some(token) = list.next_element()? {
                    tokens.push(token);
                    if tokens.len() > TOKENS_MAX {
                        return Err(A::Error::custom("there are more than 256 capabilities"));
                    }
                }
                Ok(Permissions { allow: Capabilities::new(tokens), acknowledge: Vec::new() })
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Permissions, A::Error> {
                let Fields { allow, acknowledge } = Fields::deserialize(MapAccessDeserializer::new(map))?;
                Ok(Permissions { allow, acknowledge })
            }
        }

        deserializer.deserialize_any(Forms)
    }
}
