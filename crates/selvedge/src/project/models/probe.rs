//! One small real call, to see whether host, key and model work.

use std::io;
use std::path::Path;

use selvedge_model::ModelError;
use selvedge_model::error::{Classify, Kind};
use selvedge_providers::Probe;
use tokio::runtime::Builder;

use super::Models;
use crate::project::ProjectError;

/// Why a model did not answer a probe.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It can't be called.
    #[error(transparent)]
    Project(#[from] ProjectError),
    /// It was called and failed.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// There are no threads left to call it.
    #[error("the call can't be made: {0}")]
    Runtime(#[from] io::Error),
}

impl Classify for ProbeError {
    fn kind(&self) -> Kind {
        match self {
            Self::Project(error) => error.kind(),
            Self::Model(error) => error.kind(),
            Self::Runtime(_) => Kind::Broken,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Self::Project(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::Runtime(_) => "io",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Project(error) => error.hint(),
            Self::Model(_) | Self::Runtime(_) => None,
        }
    }

    fn retryable(&self) -> bool {
        matches!(self, Self::Model(error) if error.retryable())
    }
}

impl Models {
    /// Asks a model on the network for one short answer, which costs a few tokens. This blocks, and must not be called inside a tokio
    /// runtime.
    pub fn probe(&self, model: &str, project: &Path) -> Result<Probe, ProbeError> {
        let remote = self.remote(&self.named(model), project)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(remote.probe())?)
    }

    /// Asks a host for the names of its models, which costs nothing. `None` for a vendor's own host, whose models are in the table of
    /// prices. This blocks, and must not be called inside a tokio runtime.
    pub fn served(&self, provider: &str, project: &Path) -> Result<Option<Vec<String>>, ProbeError> {
        let remote = self.remote(&format!("{provider}:*"), project)?;
        if remote.is_vendors_own() {
            return Ok(None);
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Some(runtime.block_on(remote.served())?))
    }
}
