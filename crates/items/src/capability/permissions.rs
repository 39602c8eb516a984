//! What a directive or an agent says about capabilities, and which risks it knows of.

use std::fmt;

use selvedge_model::tool::Risk;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Capabilities, TOKENS_MAX};

/// Somebody knows what a class of tools can do, and says why it is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Acknowledgement {
    /// The class.
    pub risk: Risk,
    /// Why it is wanted.
    pub why: String,
}

impl Acknowledgement {
    /// Reads one; the older names of the classes are known too.
    pub fn new(risk: &str, why: &str) -> Result<Self, String> {
        let risk = match risk {
            "safe" => Risk::Safe,
            "write" => Risk::Write,
            "external" | "elevated" => Risk::External,
            "dangerous" | "unrestricted" => Risk::Dangerous,
            other => {
                return Err(format!(
                    "`{}` is no risk: known are safe, write, external, dangerous",
                    other.escape_debug()
                ));
            }
        };
        let why = why.trim();
        match why.is_empty() {
            true => Err("an acknowledgement says why".to_owned()),
            false => Ok(Self { risk, why: why.to_owned() }),
        }
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

/// What a directive or an agent says about capabilities: what it may call, and which risks it acknowledges.
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
