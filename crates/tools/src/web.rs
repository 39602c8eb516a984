//! `web.fetch`: a page of the web, as text.
//!
//! - Every address that a name resolves to is checked, for the first request and for every redirect, and the connection goes to one of the
//!   checked addresses: a name that resolves otherwise a moment later changes nothing.
//! - Private, loopback, link-local, metadata and other special addresses are refused, in whatever form they are written, unless the
//!   configuration allows that host.
//! - Schemes, ports, redirects, bytes and time are bounded. No cookies, no credentials, no proxy.

mod address;
mod fetch;
mod html;

pub use fetch::{Resolve, SystemResolver, WebFetch, WebOptions};
