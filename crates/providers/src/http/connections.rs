//! The HTTP clients of a process, one for each combination of proxy, certificates and connect limit.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reqwest::{Client, Proxy, redirect, retry};
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::Verifier;
use selvedge_model::blocking::on_thread;

use super::Host;

/// How long an unused connection is kept.
const IDLE_TIME_MAX: Duration = Duration::from_secs(60);
/// How many unused connections are kept for one host.
const IDLE_MAX: usize = 16;

/// Shared HTTP clients. Cheap to clone.
#[derive(Clone, Default)]
pub struct Connections {
    /// The clients that were built so far. A plain lock: it is held for a lookup.
    clients: Arc<Mutex<HashMap<Settings, Client>>>,
}

/// What distinguishes clients.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Settings {
    proxy: Option<String>,
    ca_file: Option<PathBuf>,
    connect: Duration,
    /// Whether certificates are checked at all: a host on `http` works without those of the system.
    is_encrypted: bool,
}

/// Why a client can't be built.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The file with certificates can't be used.
    #[error("the certificates of `{}` can't be used: {why}", path.display())]
    Certificates { path: PathBuf, why: String },
    /// The system has no certificates.
    #[error("the system's certificates can't be loaded: {why}; install them, or name a file with `ca_file`")]
    System { why: String },
    /// The proxy's address is wrong. It is not shown, because it may have a password.
    #[error("the address of the proxy is not valid")]
    Proxy,
    /// Something else.
    #[error("the HTTP client can't be built: {why}")]
    Build { why: String },
}

impl Connections {
    /// No clients yet: each is built when it is first needed.
    pub fn new() -> Self {
        Self::default()
    }

    /// The client for a host.
    pub(super) async fn client(&self, host: &Host) -> Result<Client, ClientError> {
        let settings = Settings {
            proxy: host.proxy.clone(),
            ca_file: host.ca_file.clone(),
            connect: host.timeouts.connect,
            is_encrypted: is_https(&host.base_url) || host.proxy.as_deref().is_some_and(is_https),
        };
        let known = self.clients.lock().unwrap_or_else(PoisonError::into_inner).get(&settings).cloned();
        if let Some(client) = known {
            return Ok(client);
        }
        // Certificates are read from disk.
        let built = on_thread({
            let settings = settings.clone();
            move || settings.build()
        })
        .await?;
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        // Another call may have built one meanwhile: one pool of connections is enough.
        Ok(clients.entry(settings).or_insert(built).clone())
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").finish_non_exhaustive()
    }
}

fn is_https(url: &str) -> bool {
    url.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
}

impl Settings {
    fn build(&self) -> Result<Client, ClientError> {
        let builder = Client::builder()
            .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(self.tls()?)
            .connect_timeout(self.connect)
            .pool_idle_timeout(IDLE_TIME_MAX)
            .pool_max_idle_per_host(IDLE_MAX)
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            .referer(false)
            // The proxies of the environment are the caller's business.
            .no_proxy();
        let builder = match &self.proxy {
            Some(proxy) => builder.proxy(Proxy::all(proxy).map_err(|_| ClientError::Proxy)?),
            None => builder,
        };
        builder.build().map_err(|error| ClientError::Build { why: error.to_string() })
    }

    /// Certificates are checked against those of the system and those of the file. The cryptography is named here, so that the process
    /// needs no default.
    fn tls(&self) -> Result<ClientConfig, ClientError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let private = self.private_authorities()?;
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| ClientError::Build { why: error.to_string() })?;
        if !self.is_encrypted {
            return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
        }
        let verifier: Arc<dyn ServerCertVerifier> =
            match Verifier::new_with_extra_roots(private.iter().cloned(), provider.clone()) {
                Ok(verifier) => Arc::new(verifier),
                Err(error) if private.is_empty() => return Err(ClientError::System { why: error.to_string() }),
                // A private authority alone is enough.
                Err(_) => private_verifier(private, provider).map_err(|why| ClientError::System { why })?,
            };
        Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
    }

    fn private_authorities(&self) -> Result<Vec<CertificateDer<'static>>, ClientError> {
        let Some(path) = &self.ca_file else { return Ok(Vec::new()) };
        let refused = |why: String| ClientError::Certificates { path: path.clone(), why };
        let pem = fs::read(path).map_err(|error| refused(error.to_string()))?;
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let certificates = certificates.map_err(|error| refused(error.to_string()))?;
        if certificates.is_empty() {
            return Err(refused("the file has no certificate in PEM form".to_owned()));
        }
        Ok(certificates)
    }
}

fn private_verifier(
    private: Vec<CertificateDer<'static>>,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in private {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    let builder = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = builder.build().map_err(|error| error.to_string())?;
    Ok(verifier)
}
