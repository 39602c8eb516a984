//! The folders of a store: those that must exist, who may write to them, what was left in them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use selvedge_model::ThreadId;

use super::{Examiner, Finding, Report, Severity};
use crate::layout::{check_folder, shell_word};
use crate::restore;
use crate::rows::Row;

/// The mode bits that let group and others write.
const OTHER_WRITE: u32 = 0o022;

impl Examiner<'_> {
    /// Everything that can be checked without opening a log.
    pub(super) fn modes_and_leftovers(&self, known: &[Row], report: &mut Report) {
        self.missing_folders(report);
        self.unreadable_databases(report);
        self.not_writable(report);
        self.loose(known, report);
        self.left_out(known, report);
    }

    fn missing_folders(&self, report: &mut Report) {
        let layout = &self.core().layout;
        for (folder, why) in [
            (layout.owners(), "it only holds lock files"),
            (
                layout.tombstones(),
                "it holds the tombstones of deleted threads; without it a rebuilt database loses the deletions",
            ),
        ] {
            if check_folder(&folder).is_ok_and(|is_there| !is_there) {
                let what = format!("the folder `{}` is missing", folder.display());
                let found = Finding::new(Severity::Warning, "folder_missing", "the store", what, why);
                report.add(found.help("the next writing command creates it; `selvedge reindex` also writes the tombstones that the database has"));
            }
        }
    }

    /// Databases that `reindex` could not read and moved aside.
    fn unreadable_databases(&self, report: &mut Report) {
        let Ok(entries) = fs::read_dir(self.core().layout.root()) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("registry.db.unreadable") && !name.ends_with("-wal") && !name.ends_with("-shm") {
                let what = format!("`{name}` is a database that could not be read and was moved aside");
                let why = "it may hold requests that were not consumed; the store does not need it";
                let found = Finding::new(Severity::Note, "database_set_aside", "the store", what, why);
                report.add(found.help("remove it if you don't need it"));
            }
        }
    }

    fn not_writable(&self, report: &mut Report) {
        let layout = &self.core().layout;
        for path in [layout.root().to_owned(), layout.database()] {
            if rustix::fs::access(&path, Access::WRITE_OK).is_err() {
                let what = format!("`{}` is not writable by you", path.display());
                let why = "everything can be read and verified; nothing can be written";
                let found = Finding::new(Severity::Warning, "not_writable", "the store", what, why);
                report.add(found.help("check who owns it and its mode"));
            }
        }
    }

    /// Counts files and folders that other users may write; the first is named.
    fn loose(&self, known: &[Row], report: &mut Report) {
        let layout = &self.core().layout;
        let mut paths = vec![
            layout.root().to_owned(),
            layout.store_file(),
            layout.database(),
            layout.commit_lock(),
            layout.owners(),
            layout.tombstones(),
        ];
        for row in known {
            let thread = &row.manifest.thread_id;
            paths.extend([layout.thread(thread), layout.transcript(thread), layout.manifest(thread)]);
        }
        let loose: Vec<PathBuf> = paths.into_iter().filter(|path| is_writable_by_others(path)).collect();
        let Some(first) = loose.first() else { return };
        let what = match loose.len() {
            1 => format!("`{}` can be written by other users", first.display()),
            many => format!("{many} files and folders can be written by other users, such as `{}`", first.display()),
        };
        let why = "other users could remove signed data there, though not change it undetected";
        let found = Finding::new(Severity::Warning, "loose_mode", "the store", what, why);
        report.add(found.help(format!("`chmod -R go-w {}`", shell_word(layout.root()))));
    }

    /// Threads that were missing in the backup from which the store was restored, and that were not imported since.
    fn left_out(&self, known: &[Row], report: &mut Report) {
        let core = self.core();
        for bad in restore::left_out(&core.layout, &*core.disk) {
            let is_known = |thread: &ThreadId| known.iter().any(|row| row.manifest.thread_id == *thread);
            if !bad.is_log() || is_known(&bad.thread_id) {
                continue;
            }
            let what = "it was left out when the store was restored from a backup";
            let found = Finding::new(Severity::Warning, "threads_skipped", &bad.thread_id, what, bad.why);
            report.add(found.help(format!(
                "import it from another backup or an export: `selvedge import FILE`; or accept that it is missing, and remove `{}`",
                restore::left_out_file(&core.layout).display()
            )));
        }
    }
}

fn is_writable_by_others(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|found| !found.is_symlink() && found.mode() & OTHER_WRITE != 0)
}
