//! The address of a store: `postgres://USER@HOST/DATABASE?schema=NAME`.
//!
//! Everything that tokio-postgres understands is passed on. Two parameters are ours: `schema`, where the tables are, and `sslrootcert`, a
//! file with the certificates that the server's is checked against, instead of those of the machine.

use std::path::PathBuf;
use std::time::Duration;

use selvedge_store::{Error, Result};
use tokio_postgres::Config;

/// The schema of a store whose address names none.
const SCHEMA: &str = "selvedge";
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long bytes may stay unacknowledged before a connection counts as lost.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Where a store is.
#[derive(Clone)]
pub(crate) struct Address {
    pub(crate) config: Config,
    pub(crate) schema: String,
    pub(crate) root_certificates: Option<PathBuf>,
}

impl Address {
    /// Parses an address. `password` is used if it has none.
    pub(crate) fn parse(text: &str, password: Option<&str>) -> Result<Self> {
        let mut schema = SCHEMA.to_owned();
        let mut root_certificates = None;
        let (base, parameters) = text.split_once('?').unwrap_or((text, ""));
        let mut kept = Vec::new();
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("schema", name)) => name.clone_into(&mut schema),
                Some(("sslrootcert", path)) => root_certificates = Some(PathBuf::from(path)),
                _ => kept.push(parameter),
            }
        }
        let is_letter = |c: char| c.is_ascii_lowercase() || c == '_';
        let is_name = schema.starts_with(is_letter)
            && schema.chars().all(|c| is_letter(c) || c.is_ascii_digit())
            && schema.len() <= 50;
        if !is_name {
            let why = format!("`{schema}` is not a schema: use lower-case letters, digits and `_`, at most 50");
            return Err(bad(why));
        }
        let plain = if kept.is_empty() { base.to_owned() } else { format!("{base}?{}", kept.join("&")) };
        // The error of the parser may repeat the address, and with it the password.
        let mut config: Config = plain.parse().map_err(|_| bad("it can't be parsed".to_owned()))?;
        if config.get_password().is_none() {
            password.map(|password| config.password(password));
        }
        if config.get_hosts().is_empty() {
            return Err(bad("it names no host".to_owned()));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config.tcp_user_timeout(UNACKNOWLEDGED);
        config.keepalives_idle(UNACKNOWLEDGED);
        config.application_name("selvedge");
        Ok(Self { config, schema, root_certificates })
    }

    /// The channel of this store's notifications.
    pub(crate) fn channel(&self) -> String {
        format!("selvedge_{}", self.schema)
    }
}

fn bad(why: String) -> Error {
    Error::Unusable {
        what: "the address of the store".to_owned(),
        why,
        hint: Some("write it as `postgres://USER@HOST/DATABASE`".to_owned()),
    }
}

/// An address without its password, for messages.
pub fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let authority = match authority.rsplit_once('@') {
        Some((user, host)) => format!("{}@{host}", user.split(':').next().unwrap_or_default()),
        None => authority.to_owned(),
    };
    format!("{scheme}://{authority}{}", path.split('?').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_parameters_are_taken_out_of_the_address() {
        let address = Address::parse("postgres://ada@db/work?schema=team_1&sslmode=require", Some("secret")).unwrap();
        assert_eq!((address.schema.as_str(), address.config.get_dbname()), ("team_1", Some("work")));
        assert_eq!(address.config.get_password(), Some(b"secret".as_slice()));
        assert_eq!(
            Address::parse("postgres://ada:own@db/work", Some("secret")).unwrap().config.get_password(),
            Some(b"own".as_slice())
        );
    }

    #[test]
    fn a_bad_address_is_refused_without_showing_its_password() {
        for bad in ["postgres://ada:hidden@db/x?schema=A-B", "postgres://ada:hidden@db:port/x", "postgres://"] {
            let Err(error) = Address::parse(bad, None) else { panic!("`{bad}` is accepted") };
            assert!(!error.to_string().contains("hidden"), "{error}");
        }
        assert_eq!(shown("postgres://ada:hidden@db:5432/work?password=hidden"), "postgres://ada@db:5432/work");
    }
}
