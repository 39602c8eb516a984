//! Bytes on disk against bytes of text.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use selvedge_store_local::layout::Layout;
use serde_json::json;

use crate::home::{TEXT_BYTES, with_turns};
use crate::measure::Spread;
use crate::report::{Goal, Report, Unit};
use crate::{Outcome, Plan};

const TURNS: u64 = 1_000;

pub(crate) fn measure(folder: &Path, plan: Plan, report: &mut Report) -> Outcome<()> {
    let (home, thread) = with_turns(&folder.join("store"), TURNS, plan.ids)?;
    let payload = (TURNS * 3) as f64 * TEXT_BYTES as f64;
    let layout = Layout::of(home.folder());
    let transcript = fs::metadata(layout.transcript(&thread))?.len();
    let mut files = Vec::new();
    list(layout.root(), &mut files)?;
    let whole: u64 = files.iter().map(|file| file.bytes).sum();
    let blocks: u64 = files.iter().map(|file| file.blocks).sum();
    let one = |bytes: u64| Spread::of(&[bytes as f64 / payload]);
    report.figure("bytes_transcript_ratio", "transcript ÷ text", Unit::Times, &one(transcript), Goal::AtMost(1.8));
    report.figure("bytes_store_ratio", "whole store after close ÷ text", Unit::Times, &one(whole), Goal::AtMost(2.2));
    report.figure("bytes_blocks_ratio", "  same, blocks of the disk", Unit::Times, &one(blocks), Goal::None);
    let named: serde_json::Map<_, _> = files.into_iter().map(|file| (file.name, json!(file.bytes))).collect();
    report.number("bytes_files", named.into());
    report.method(
        "bytes",
        format!("one thread of {TURNS} turns, {} commits of {TEXT_BYTES} bytes of text, store closed", TURNS * 3),
    );
    Ok(())
}

struct FileSize {
    name: String,
    bytes: u64,
    blocks: u64,
}

fn list(folder: &Path, files: &mut Vec<FileSize>) -> Outcome<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            list(&entry.path(), files)?;
        } else {
            let name = entry.path().to_string_lossy().rsplit("/threads/").next().unwrap_or_default().to_owned();
            files.push(FileSize { name, bytes: metadata.len(), blocks: metadata.blocks() * 512 });
        }
    }
    Ok(())
}
