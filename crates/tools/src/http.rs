//! The HTTP client of tools: one small runtime for all of them, and clients that check certificates against those of the system.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect, retry};
use rustls::ClientConfig;
use rustls_platform_verifier::Verifier;
use tokio::runtime::{Builder, Runtime};

const CONNECT_MAX: Duration = Duration::from_secs(15);

/// The runtime of all requests of tools; none if it can't be started.
static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();

/// Waits for a request on this thread, which is one of a tool.
pub(crate) fn wait<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread().worker_threads(1).thread_name("tools-http").enable_io().enable_time().build().ok()
    });
    runtime.as_ref().map(|runtime| runtime.block_on(work)).ok_or_else(|| "no thread could be started".to_owned())
}

/// A client that follows no redirects, uses no proxy of the environment, and repeats nothing.
pub(crate) fn client() -> Result<ClientBuilder, String> {
    Ok(Client::builder()
        .user_agent(concat!("selvedge/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls()?)
        .connect_timeout(CONNECT_MAX)
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .no_proxy())
}

fn tls() -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    // Without the system's certificates only addresses without encryption can be reached.
    Ok(match Verifier::new(provider) {
        Ok(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth(),
        Err(_) => builder.with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth(),
    })
}
