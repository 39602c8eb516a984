//! TLS to the server. tokio-postgres asks for it as `sslmode` says; the certificate is checked against the machine's roots, or against a
//! file of the user's.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;
use selvedge_store::Result;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Encrypted;

use crate::address::Address;
use crate::error::unusable;

/// Makes TLS connections.
#[derive(Clone)]
pub(crate) struct Tls(Arc<ClientConfig>);

impl Tls {
    pub(crate) fn new(address: &Address) -> Result<Self> {
        let refused = |why: &dyn std::fmt::Display| unusable(format!("TLS can't be set up: {why}"), None);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().map_err(|error| refused(&error))?;
        let config = match &address.root_certificates {
            Some(path) => {
                let mut roots = RootCertStore::empty();
                let named = |error: &dyn std::fmt::Display| refused(&format!("`{}`: {error}", path.display()));
                for certificate in CertificateDer::pem_file_iter(path).map_err(|error| named(&error))? {
                    roots.add(certificate.map_err(|error| named(&error))?).map_err(|error| named(&error))?;
                }
                builder.with_root_certificates(roots)
            }
            None => builder.with_platform_verifier().map_err(|error| refused(&error))?,
        };
        Ok(Self(Arc::new(config.with_no_client_auth())))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connect> {
        Ok(Connect { config: self.0.clone(), host: host.to_owned() })
    }
}

/// One connection to be made.
pub(crate) struct Connect {
    config: Arc<ClientConfig>,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let name = ServerName::try_from(self.host).map_err(io::Error::other)?;
            Ok(Stream(TlsConnector::from(self.config).connect(name, stream).await?))
        })
    }
}

/// An encrypted connection.
pub(crate) struct Stream<S>(Encrypted<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
