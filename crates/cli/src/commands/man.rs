//! `selvedge man`: the help texts as manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;
use serde::Serialize;

use crate::args;
use crate::commands::help::{find, shown};
use crate::context::Context;
use crate::error::{Failure, Result};

/// Generate manual pages
///
/// Prints the page of one command as roff, or writes it and the pages of its subcommands to a folder.
///
/// JSON: {"command", "page"}; with --out one object per page, {"command", "file"}
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The command; default: Selvedge as a whole
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
    /// Write one page per command to DIR; existing pages are replaced
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Serialize)]
struct PrintedPage {
    command: String,
    page: String,
}

#[derive(Serialize)]
struct ManPage {
    command: String,
    #[serde(serialize_with = "crate::text::in_json")]
    file: PathBuf,
}

pub(crate) fn run(args: &Args, context: &Context<'_>) -> Result<()> {
    let mut root = args::command();
    root.build();
    let command = find(&mut root, &args.words)?;
    match &args.out {
        Some(folder) => {
            let folder = context.folder.join(folder);
            fs::create_dir_all(&folder).map_err(|error| Failure::io("make", &folder, &error))?;
            write(command, &folder, context)
        }
        None => print(command, context),
    }
}

fn print(command: &Command, context: &Context<'_>) -> Result<()> {
    let page = render(command);
    if context.output.is_json() {
        context
            .output
            .record(&PrintedPage { command: name(command), page: String::from_utf8_lossy(&page).into_owned() })
    } else {
        context.output.bytes(&page)
    }
}

fn write(command: &Command, folder: &Path, context: &Context<'_>) -> Result<()> {
    let file = folder.join(format!("{}.1", name(command).replace(' ', "-")));
    fs::write(&file, render(command)).map_err(|error| Failure::io("write", &file, &error))?;
    if context.output.is_json() {
        context.output.record(&ManPage { command: name(command), file })?
    } else {
        context.output.text(file.display())?
    }
    shown(command).try_for_each(|below| write(below, folder, context))
}

/// The words that call a command.
fn name(command: &Command) -> String {
    command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn render(command: &Command) -> Vec<u8> {
    let source = concat!("selvedge ", env!("CARGO_PKG_VERSION"));
    let mut page = Vec::new();
    let man = Man::new(command.clone()).source(source).manual("Selvedge");
    man.render(&mut page).expect("writing to memory can't fail");
    page
}
