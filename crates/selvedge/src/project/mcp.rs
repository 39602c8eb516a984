//! MCP servers of a project: which are declared, which of them their user approved, and the tools of those.
//!
//! An approval is a signed file in the user's folder, never in the project: a project can't approve its own servers. It holds the whole
//! declaration (command, names of variables, address, classes, sandbox), the project that it is for, and the definition of every tool. A
//! server is started, and a tool is offered, only as they were approved.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use selvedge_items::Layer;
use selvedge_items::mcp::DeclaredServer;
use selvedge_log::Signer;
use selvedge_log::document::{DocumentKind, sign_json, verify_json};
use selvedge_log::hash::sha256;
use selvedge_model::digest::hex;
use selvedge_model::tool::{McpServerSpec, McpToolDefinition};
use selvedge_model::{Cancel, Digest, Timestamp, Tool};
use selvedge_tools::mcp::{Listed, digest};
use selvedge_tools::{McpEnvironment, McpTool, Sandbox, Servers};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Project;

/// The kind of an approval.
const KIND: DocumentKind = DocumentKind::new("mcp_approval");
/// The folder of approvals, in the user's folder.
const FOLDER: &str = "mcp";
const BYTES_MAX: u64 = 64 << 20;

/// What a user approved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// The declaration.
    pub server: McpServerSpec,
    /// The project that declares it; absent if the user's own folder does.
    pub project: Option<String>,
    /// The version of the protocol that it spoke.
    pub protocol: String,
    /// Its tools, as it described them.
    pub tools: Vec<McpToolDefinition>,
}

impl Approval {
    /// SHA-256 of all that is approved.
    pub fn digest(&self) -> Digest {
        sha256(json!(self).to_string().as_bytes())
    }
}

/// A declared server, and whether it may be started.
#[derive(Clone, Debug)]
pub struct McpServer {
    /// The declaration.
    pub declared: DeclaredServer,
    /// What is known of its approval.
    pub standing: McpStanding,
}

/// Whether a server may be started.
#[derive(Clone, Debug, PartialEq)]
pub enum McpStanding {
    /// As declared, it was approved.
    Approved(Box<Approval>),
    /// It was approved with another declaration.
    Redeclared(Box<Approval>),
    /// It was not approved.
    Unapproved,
    /// Its approval can't be trusted.
    Invalid(String),
}

impl McpStanding {
    /// Its name.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Approved(_) => "approved",
            Self::Redeclared(_) => "changed",
            Self::Unapproved => "not approved",
            Self::Invalid(_) => "invalid",
        }
    }
}

/// The servers of a process in this project.
pub fn servers(
    folder: &Path,
    environment: &std::collections::BTreeMap<String, String>,
    sandbox: Option<&Sandbox>,
) -> Servers {
    Servers::new(McpEnvironment {
        root: folder.to_owned(),
        environment: environment.clone(),
        sandbox: sandbox.cloned(),
    })
}

impl Project {
    /// The declared servers, and notices about declarations that can't be used.
    pub fn mcp_servers(&self) -> (Vec<McpServer>, Vec<String>) {
        let (declared, notices) = self.library.mcp_servers();
        let judged = declared.into_iter().map(|declared| {
            let standing = self.standing(&declared);
            McpServer { declared, standing }
        });
        (judged.collect(), notices)
    }

    /// The tools of approved servers; notices say which servers are not. No server is started for that.
    pub(super) fn mcp_tools(&self, notices: &mut Vec<String>) -> Vec<Arc<dyn Tool>> {
        let (servers, unusable) = self.mcp_servers();
        notices.extend(unusable);
        let mut tools: Vec<Arc<dyn Tool>> = Vec::new();
        for McpServer { declared, standing } in servers {
            let name = &declared.spec.name;
            let approval = match standing {
                McpStanding::Approved(approval) => approval,
                McpStanding::Redeclared(_) => {
                    notices.push(format!("the MCP server `{name}` is declared otherwise than it was approved; `selvedge mcp approve {name}` approves it"));
                    continue;
                }
                McpStanding::Unapproved => {
                    notices.push(format!("the MCP server `{name}` is not approved and not started; `selvedge mcp approve {name}` shows and approves it"));
                    continue;
                }
                McpStanding::Invalid(why) => {
                    notices.push(format!("the approval of the MCP server `{name}` can't be used: {why}"));
                    continue;
                }
            };
            for definition in approval.tools {
                match McpTool::new(declared.spec.clone(), definition, self.mcp.clone()) {
                    Ok(tool) => tools.push(Arc::new(tool)),
                    Err(error) => notices.push(error.to_string()),
                }
            }
        }
        tools
    }

    /// Starts a server, or uses the one that runs, and asks what it offers. The caller has its user's word for that.
    pub fn mcp_list(&self, server: &McpServerSpec) -> Result<Listed, String> {
        self.mcp.list(server, &Cancel::new())
    }

    /// Approves a server as it is declared, with the tools that it offers now. On return the approval is durable.
    pub fn mcp_approve(
        &self,
        user: &Path,
        declared: &DeclaredServer,
        listed: Listed,
        signer: &Signer,
        at: Timestamp,
    ) -> io::Result<(Approval, PathBuf)> {
        let approval = Approval {
            server: declared.spec.clone(),
            project: self.scope(declared),
            protocol: listed.version,
            tools: listed.tools,
        };
        let id = self.approval_id(declared);
        let value = serde_json::to_value(&approval).map_err(io::Error::other)?;
        let text = sign_json(KIND, &id, value, signer, at).map_err(io::Error::other)?;
        let folder = user.join(FOLDER);
        fs::DirBuilder::new().mode(0o700).recursive(true).create(&folder)?;
        let file = user.join(format!("{id}.json"));
        let unfinished = user.join(format!("{id}.{}.new", std::process::id()));
        let mut new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&unfinished, &file)?;
        fs::File::open(&folder)?.sync_all()?;
        Ok((approval, file))
    }

    fn standing(&self, declared: &DeclaredServer) -> McpStanding {
        let Some(user) = &self.library.user else { return McpStanding::Unapproved };
        let id = self.approval_id(declared);
        let bytes = match read(&user.join(format!("{id}.json"))) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return McpStanding::Unapproved,
            Err(error) => return McpStanding::Invalid(error.to_string()),
        };
        let approval = match verify_json(KIND, &id, &bytes, &self.library.trust) {
            Ok(verified) => serde_json::from_value::<Approval>(verified.value).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match approval {
            Ok(approval) if approval.project != self.scope(declared) => McpStanding::Unapproved,
            Ok(approval) if approval.server == declared.spec => McpStanding::Approved(Box::new(approval)),
            Ok(approval) => McpStanding::Redeclared(Box::new(approval)),
            Err(why) => McpStanding::Invalid(why),
        }
    }

    /// The project that an approval is for. A server that the user's own folder declares is the same in every project.
    fn scope(&self, declared: &DeclaredServer) -> Option<String> {
        let is_project = declared.layer == Layer::Project;
        let folder = || self.folder.canonicalize().unwrap_or_else(|_| self.folder.clone());
        is_project.then(|| folder().display().to_string())
    }

    fn approval_id(&self, declared: &DeclaredServer) -> String {
        let scope = self.scope(declared).unwrap_or_default();
        format!("{FOLDER}/{}-{}", declared.spec.name, &hex(&sha256(scope.as_bytes()).0)[..12])
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// What is different between the tools that were approved and those that are offered now.
pub fn differences(approved: &[McpToolDefinition], now: &[McpToolDefinition]) -> Vec<String> {
    let find = |tools: &[McpToolDefinition], name: &str| tools.iter().find(|tool| tool.name == name).cloned();
    let mut found = Vec::new();
    for tool in now {
        match find(approved, &tool.name) {
            None => found.push(format!("`{}` is new", tool.name)),
            Some(before) if digest(&before) == digest(tool) => {}
            Some(before) => {
                let parts = [
                    ("description", before.description != tool.description),
                    ("schema", before.input_schema != tool.input_schema),
                    ("annotations", before.annotations != tool.annotations),
                ];
                let parts: Vec<&str> =
                    parts.into_iter().filter(|(_, differs)| *differs).map(|(part, _)| part).collect();
                found.push(format!("the {} of `{}` changed", parts.join(" and the "), tool.name));
            }
        }
    }
    let gone = approved.iter().filter(|tool| find(now, &tool.name).is_none());
    found.extend(gone.map(|tool| format!("`{}` is not offered any more", tool.name)));
    found
}
