//! The tool.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, Response, Url};
use selvedge_model::event::EffectClass;
use selvedge_model::tool::{Dispatch, Reconciled, Risk, Started};
use selvedge_model::{Call, Cancel, Output, Tool, ToolError, ToolSpec};
use serde_json::json;

use super::{address, html};
use crate::error::InvalidTool;
use crate::http;
use crate::in_process;
use crate::schema::Schema;

const REDIRECTS_MAX: usize = 5;
const URL_BYTES_MAX: usize = 8 * 1024;
/// The most bytes of a page that are read.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most characters that are returned.
const TEXT_CHARS_MAX: usize = 200_000;
const TIME_MAX: Duration = Duration::from_secs(30);
const ADDRESSES_MAX: usize = 16;

/// How names become addresses.
pub trait Resolve: Send + Sync {
    /// All addresses of a host.
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok((host, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
    }
}

/// What may be fetched.
#[derive(Clone)]
pub struct WebOptions {
    /// Hosts whose addresses are not checked, such as `wiki.internal` or `localhost:8080`; with a port only that one is meant.
    pub allowed: Vec<String>,
    /// How names become addresses.
    pub resolver: Arc<dyn Resolve>,
}

impl Default for WebOptions {
    fn default() -> Self {
        Self { allowed: Vec::new(), resolver: Arc::new(SystemResolver) }
    }
}

impl fmt::Debug for WebOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WebOptions").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

/// The tool. It only reads, so it can be made again.
#[derive(Debug)]
pub struct WebFetch {
    options: WebOptions,
    spec: ToolSpec,
    schema: Schema,
}

impl WebFetch {
    /// Fetches what the options allow.
    pub fn new(options: WebOptions) -> Result<Self, InvalidTool> {
        let schema = json!({
            "type": "object",
            "properties": {
                "url": {"type": "string", "description": "The address, with `https://` or `http://`."},
                "method": {"enum": ["GET", "HEAD"], "description": "`GET` if it is left out."}
            },
            "required": ["url"],
            "additionalProperties": false
        });
        let description = "Fetches a page of the web and returns its text.";
        let spec = in_process::spec("web.fetch", description, schema, EffectClass::Pure, Risk::External);
        Ok(Self { schema: Schema::compile(&spec.name, &spec.input_schema)?, options, spec })
    }
}

impl Tool for WebFetch {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn start(&self, call: &Call) -> Result<Box<dyn Started>, ToolError> {
        self.schema.check(&self.spec.name, &call.arguments)?;
        let not_started = |why| ToolError::NotStarted { tool: self.spec.name.clone(), why };
        let url = parsed(call.arguments["url"].as_str().unwrap_or_default()).map_err(not_started)?;
        let method = if call.arguments["method"] == "HEAD" { Method::HEAD } else { Method::GET };
        Ok(Box::new(Fetch { options: self.options.clone(), url, method }))
    }

    /// It has no effect, so it can be made again.
    fn reconcile(&self, _call: &Call, _cancel: &Cancel) -> Reconciled {
        Reconciled::NotDone
    }
}

/// A request that is not sent yet.
struct Fetch {
    options: WebOptions,
    url: Url,
    method: Method,
}

impl Started for Fetch {
    fn process(&self) -> Option<selvedge_model::event::Process> {
        None
    }

    fn dispatch(self: Box<Self>, cancel: &Cancel) -> Dispatch {
        let cancel = cancel.clone();
        let stopped = || ToolError::Stopped { tool: "web.fetch".to_owned() };
        if cancel.said().is_some() {
            return Dispatch::Done(Err(stopped()));
        }
        Dispatch::blocking(move || {
            let fetched = http::wait(async {
                tokio::select! {
                    fetched = self.fetch() => Some(fetched),
                    _ = cancel.stopped() => None,
                    () = tokio::time::sleep(TIME_MAX) => Some(Err(format!("it took more than {} s", TIME_MAX.as_secs()))),
                }
            });
            match fetched {
                Ok(Some(Ok(output))) => Ok(output),
                Ok(None) => Err(stopped()),
                Ok(Some(Err(why))) | Err(why) => Ok(Output::error(why)),
            }
        })
    }
}

/// Checks an address, without the network.
fn parsed(text: &str) -> Result<Url, String> {
    if text.len() > URL_BYTES_MAX {
        return Err("the address is too long".to_owned());
    }
    let url = Url::parse(text).map_err(|error| format!("it is not an address: {error}"))?;
    check_form(&url)?;
    Ok(url)
}

fn check_form(url: &Url) -> Result<(), String> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("`{}` addresses are refused; allowed are `https` and `http`", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("an address with a user or a password is refused".to_owned());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("the address has no host".to_owned());
    }
    Ok(())
}

impl Fetch {
    async fn fetch(mut self) -> Result<Output, String> {
        for _ in 0..=REDIRECTS_MAX {
            check_form(&self.url)?;
            let addresses = self.checked().await?;
            let host = self.url.host_str().unwrap_or_default().to_owned();
            // The client knows no other addresses of this host than those that were checked, and asks nobody.
            let client = http::client()?.resolve_to_addrs(&host, &addresses).build();
            let client = client.map_err(|error| error.to_string())?;
            let request =
                client.request(self.method.clone(), self.url.clone()).header("accept", "text/html, text/*, */*;q=0.1");
            let response = request.send().await;
            let response = response.map_err(|error| format!("`{host}` can't be reached: {}", error.without_url()))?;
            match moved(&response, &self.url)? {
                Some(next) => self.url = next,
                None => return output(response, &self.url, &self.method).await,
            }
        }
        Err(format!("it was redirected more than {REDIRECTS_MAX} times"))
    }

    /// The addresses of the host; refused if one of them is not a public one.
    async fn checked(&self) -> Result<Vec<SocketAddr>, String> {
        let host = self.url.host_str().unwrap_or_default().to_owned();
        let port = self.url.port_or_known_default().unwrap_or_default();
        let is_allowed = self.options.allowed.iter().any(|one| *one == host || *one == format!("{host}:{port}"));
        if !is_allowed && !matches!(port, 80 | 443 | 8080 | 8443) {
            return Err(format!("port {port} is refused"));
        }
        let found = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) => {
                let (resolver, name) = (self.options.resolver.clone(), host.clone());
                let found = tokio::task::spawn_blocking(move || resolver.resolve(&name)).await;
                let found = found.map_err(|error| error.to_string())?;
                found.map_err(|error| format!("`{host}` has no address: {error}"))?
            }
        };
        let refused = found.iter().find_map(|one| Some((one, address::refused(*one)?)));
        match refused.filter(|_| !is_allowed) {
            Some((address, why)) => {
                Err(format!("`{host}` is refused: {address} is {why}; `web.allow` of the configuration allows hosts"))
            }
            None if found.is_empty() => Err(format!("`{host}` has no address")),
            None => Ok(found.into_iter().take(ADDRESSES_MAX).map(|address| SocketAddr::new(address, port)).collect()),
        }
    }
}

/// Where a response leads, if it is a redirect.
fn moved(response: &Response, url: &Url) -> Result<Option<Url>, String> {
    if !response.status().is_redirection() {
        return Ok(None);
    }
    let Some(place) = response.headers().get("location") else { return Ok(None) };
    let place = place.to_str().map_err(|_| "it redirects to something that is no address".to_owned())?;
    let next = url.join(place).map_err(|error| format!("it redirects to something that is no address: {error}"))?;
    check_form(&next)?;
    Ok(Some(next))
}

async fn output(mut response: Response, url: &Url, method: &Method) -> Result<Output, String> {
    let status = response.status();
    let header =
        |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let kind = header("content-type");
    let mut page = json!({"url": url.as_str(), "status": status.as_u16(), "type": kind});
    if *method == Method::HEAD {
        page["bytes"] = json!(header("content-length").parse::<u64>().ok());
        return Ok(Output { content: page, is_error: !status.is_success(), ..Output::default() });
    }
    let is_html = kind.contains("html");
    let is_text = kind.is_empty()
        || is_html
        || kind.starts_with("text/")
        || ["json", "xml", "javascript", "yaml"].iter().any(|word| kind.contains(word));
    if !is_text {
        return Err(format!("it is `{kind}`, which is no text"));
    }
    let mut bytes = Vec::new();
    let mut is_cut = false;
    while let Some(piece) =
        response.chunk().await.map_err(|error| format!("the page was cut: {}", error.without_url()))?
    {
        bytes.extend_from_slice(&piece);
        if bytes.len() > PAGE_BYTES_MAX {
            bytes.truncate(PAGE_BYTES_MAX);
            is_cut = true;
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let text = if is_html { html::text(&text) } else { text.into_owned() };
    let shown: String = text.chars().take(TEXT_CHARS_MAX).collect();
    page["is_cut"] = json!(is_cut || shown.len() < text.len());
    page["text"] = json!(shown);
    Ok(Output { content: page, is_error: !status.is_success(), ..Output::default() })
}
