//! A signed list of the heads of every log of a store, kept outside of it, and the comparison of a store with such a list.
//!
//! A store that is rolled back as a whole, logs and database together, is consistent in itself. A list like this, kept on another disk or
//! machine, detects that: the first `bytes` bytes of each log must still hash to `hash`.
//!
//! ```text
//! {"version":1, "store_id", "made_at",
//!  "threads":    [{"thread_id", "log_id", "version", "bytes", "hash"}],      in the order of their ids
//!  "tombstones": [{"thread_id", "log_id", "version", "bytes", "hash"}],
//!  "accounts":   [{"account", "version", "settled", "settled_children", "reserved"}],
//!  "_signature"}                                                             kind `heads`, ID `heads`
//! ```
//!
//! - A log may have grown, or be deleted with a signed tombstone of at least that version. Anything else is a [`Difference`].
//! - Threads that are not in the list are newer, and not reported.
//! - Accounts are derived from the logs: an older account while every log is intact means that only the database was rolled back.
//! - Nothing here reads a store by itself: a backend implements [`StoreContent`].

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead};

use selvedge_log::document::{self, DocumentError, DocumentKind};
use selvedge_log::hash::RunningHash;
use selvedge_log::{Head, Signer, Trust};
use selvedge_model::account::{Account, AccountId};
use selvedge_model::{Digest, LogId, Money, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::error::Result;

/// The document kind of the list's signature.
pub const KIND: DocumentKind = DocumentKind::new("heads");
/// The item that the signature names.
pub const ITEM: &str = "heads";
/// The version of the list format.
pub const VERSION: u64 = 1;
/// The maximum length of a list.
pub const BYTES_MAX: u64 = 256 << 20;

/// The heads of the logs and accounts of a store at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heads {
    /// The version of the list format.
    pub version: u64,
    /// The random id of the store.
    pub store_id: String,
    /// When it was made, by the clock of the process that made it.
    pub made_at: Timestamp,
    /// Every thread.
    pub threads: Vec<LogHead>,
    /// Every deleted thread, and the last head of its log.
    pub tombstones: Vec<LogHead>,
    /// Every account.
    pub accounts: Vec<AccountHead>,
}

/// The head of one log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogHead {
    /// The thread.
    pub thread_id: ThreadId,
    /// Its log.
    pub log_id: LogId,
    /// The version of its last checkpoint.
    pub version: u64,
    /// Its length in bytes, that checkpoint included.
    pub bytes: u64,
    /// The SHA-256 of those bytes.
    pub hash: Digest,
}

impl LogHead {
    /// The head of a thread's log.
    pub fn new(thread_id: ThreadId, head: &Head) -> Self {
        let Head { log_id, version, bytes, hash, .. } = head;
        Self { thread_id, log_id: *log_id, version: *version, bytes: *bytes, hash: *hash }
    }
}

/// The state of one account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountHead {
    /// The account.
    pub account: AccountId,
    /// Its number of postings.
    pub version: u64,
    /// What its chain spent.
    #[serde(with = "nanos")]
    pub settled: Money,
    /// What its children spent.
    #[serde(with = "nanos")]
    pub settled_children: Money,
    /// What was reserved.
    #[serde(with = "nanos")]
    pub reserved: Money,
}

impl From<&Account> for AccountHead {
    fn from(account: &Account) -> Self {
        let Account { id, version, settled, settled_children, reserved, .. } = account;
        Self {
            account: id.clone(),
            version: *version,
            settled: *settled,
            settled_children: *settled_children,
            reserved: *reserved,
        }
    }
}

/// The current heads of a store, ready to be signed.
#[derive(Clone, Debug)]
pub struct CurrentHeads {
    /// The list.
    pub heads: Heads,
    /// What is left out because it fails its signature or seal, a sentence each.
    pub left_out: Vec<String>,
}

/// Nano-dollars as a decimal string: a signed document has no number beyond 2^53.
mod nanos {
    use selvedge_model::Money;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(money: &Money, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&money.nanos().to_string())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nanos = text.parse().map_err(D::Error::custom)?;
        Money::from_nanos(nanos).map_err(D::Error::custom)
    }
}

/// A signed list.
#[derive(Clone, Debug)]
pub struct SignedHeads {
    /// The list.
    pub heads: Heads,
    /// The signer.
    pub signer: Digest,
}

impl Heads {
    /// The file's text, signed.
    pub fn sign(&self, signer: &Signer) -> std::result::Result<String, DocumentError> {
        let value = serde_json::to_value(self).map_err(|_| DocumentError::Malformed { why: "it has no JSON form" })?;
        document::sign_json(KIND, ITEM, value, signer, self.made_at)
    }

    /// Reads a list signed by a trusted key.
    pub fn read(bytes: &[u8], trust: &Trust) -> std::result::Result<SignedHeads, DocumentError> {
        let verified = document::verify_json(KIND, ITEM, bytes, trust)?;
        let not_a_list =
            |_| DocumentError::Malformed { why: "it is signed, but is not a list of heads of this version" };
        let heads: Self = serde_json::from_value(verified.value).map_err(not_a_list)?;
        if heads.version != VERSION {
            return Err(DocumentError::Malformed { why: "it is a list of heads of another version" });
        }
        Ok(SignedHeads { heads, signer: verified.signer })
    }

    /// The same list with only these threads and their accounts.
    #[must_use]
    pub fn only(mut self, threads: &BTreeSet<ThreadId>) -> Self {
        self.threads.retain(|head| threads.contains(&head.thread_id));
        self.tombstones.retain(|head| threads.contains(&head.thread_id));
        self.accounts.retain(|account| threads.contains(&account.account));
        self
    }

    /// Whether the list names this thread.
    pub fn names(&self, thread: &ThreadId) -> bool {
        self.threads.iter().chain(&self.tombstones).any(|head| head.thread_id == *thread)
    }
}

/// The current content of a store.
pub trait StoreContent {
    /// The head of a log and its committed bytes; none if there is no log.
    fn log(&self, thread: &ThreadId) -> Result<Option<(Head, Box<dyn BufRead + Send>)>>;

    /// The last head of a deleted thread, from its tombstone, which a trusted key signed.
    fn buried(&self, thread: &ThreadId) -> Result<Option<Head>>;

    /// One account.
    fn account(&self, id: &AccountId) -> Result<Option<Account>>;
}

/// How logs are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Every byte up to the listed head is hashed.
    Whole,
    /// A log is hashed if it has at most this many bytes and has grown since; of others only the version is compared.
    UpTo(u64),
}

/// A difference from the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// There is neither a log nor a tombstone of it.
    Missing,
    /// Its log ends before.
    Shorter {
        /// The version it ends at.
        have: u64,
    },
    /// Its log has other bytes before that checkpoint.
    Changed,
    /// There is another log of this thread.
    OtherLog,
    /// It was deleted, and its tombstone has an earlier version.
    DeletedBefore {
        /// The version in the tombstone.
        have: u64,
    },
    /// It was deleted, and is not deleted any more.
    Undeleted,
    /// There is no such account.
    NoAccount,
    /// The account has fewer postings.
    AccountOlder {
        /// Its number of postings.
        have: u64,
    },
    /// The account has as many postings, and other amounts.
    AccountChanged,
    /// It can't be read, or fails its signature or seal.
    Unreadable {
        /// Why.
        why: String,
    },
}

impl Difference {
    /// A stable code.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Shorter { .. } => "shorter",
            Self::Changed => "changed",
            Self::OtherLog => "other_log",
            Self::DeletedBefore { .. } => "deleted_before",
            Self::Undeleted => "undeleted",
            Self::NoAccount => "account_missing",
            Self::AccountOlder { .. } => "account_older",
            Self::AccountChanged => "account_changed",
            Self::Unreadable { .. } => "unreadable",
        }
    }

    /// Whether it concerns the ledger and not a log.
    pub fn is_of_account(&self) -> bool {
        matches!(self, Self::NoAccount | Self::AccountOlder { .. } | Self::AccountChanged)
    }
}

/// One thread or account that differs from the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeadDifference {
    /// The thread, or the account's thread.
    pub thread: ThreadId,
    /// The version in the list.
    pub version: u64,
    /// The difference.
    pub how: Difference,
}

impl fmt::Display for HeadDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, version, how } = self;
        match how {
            Difference::Missing => write!(f, "`{thread}` was at version {version}, and is missing"),
            Difference::Shorter { have } => write!(f, "`{thread}` was at version {version}, and ends at {have}"),
            Difference::Changed => write!(f, "`{thread}` has other content before version {version}"),
            Difference::OtherLog => write!(f, "`{thread}` was at version {version}, and another log is in its place"),
            Difference::DeletedBefore { have } => {
                write!(f, "`{thread}` was at version {version}, and its tombstone has version {have}")
            }
            Difference::Undeleted => {
                write!(f, "`{thread}` was deleted at version {version}, and its tombstone is missing")
            }
            Difference::NoAccount => write!(f, "the account of `{thread}` had {version} postings, and is missing"),
            Difference::AccountOlder { have } => {
                write!(f, "the account of `{thread}` had {version} postings, and has {have}")
            }
            Difference::AccountChanged => {
                write!(f, "the account of `{thread}` has other amounts at the same {version} postings")
            }
            Difference::Unreadable { why } => {
                write!(f, "`{thread}` was at version {version}, and can't be read: {why}")
            }
        }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// How many threads were compared, including deleted ones.
    pub threads: u64,
    /// How many accounts.
    pub accounts: u64,
    /// How many logs were compared only by their versions.
    pub not_hashed: u64,
    /// The differences: logs first.
    pub differs: Vec<HeadDifference>,
}

/// Compares a store with a list. A thread that can't be read does not stop the comparison.
pub fn compare(heads: &Heads, present: &dyn StoreContent, depth: Depth) -> Comparison {
    let mut compared = Comparison::default();
    for head in &heads.threads {
        compared.threads += 1;
        let found = log_differs(head, present, depth, &mut compared.not_hashed);
        compared.take(&head.thread_id, head.version, found);
    }
    for head in &heads.tombstones {
        compared.threads += 1;
        let found = present.buried(&head.thread_id).map(|found| match found {
            Some(found) if found.log_id != head.log_id => Some(Difference::OtherLog),
            Some(found) if found.version < head.version => Some(Difference::DeletedBefore { have: found.version }),
            Some(_) => None,
            None => Some(Difference::Undeleted),
        });
        compared.take(&head.thread_id, head.version, found);
    }
    for head in &heads.accounts {
        compared.accounts += 1;
        let found = account_differs(head, present);
        compared.take(&head.account, head.version, found);
    }
    compared
}

impl Comparison {
    fn take(&mut self, thread: &ThreadId, version: u64, found: Result<Option<Difference>>) {
        let how = found.unwrap_or_else(|error| Some(Difference::Unreadable { why: error.to_string() }));
        self.differs.extend(how.map(|how| HeadDifference { thread: thread.clone(), version, how }));
    }
}

fn log_differs(
    remembered: &LogHead,
    present: &dyn StoreContent,
    depth: Depth,
    not_hashed: &mut u64,
) -> Result<Option<Difference>> {
    let LogHead { thread_id, log_id, version, bytes, hash } = remembered;
    let Some((head, log)) = present.log(thread_id)? else {
        return Ok(match present.buried(thread_id)? {
            Some(buried) if buried.log_id != *log_id => Some(Difference::OtherLog),
            Some(buried) if buried.version < *version => Some(Difference::DeletedBefore { have: buried.version }),
            Some(_) => None,
            None => Some(Difference::Missing),
        });
    };
    if head.log_id != *log_id {
        return Ok(Some(Difference::OtherLog));
    }
    if head.version < *version || head.bytes < *bytes {
        return Ok(Some(Difference::Shorter { have: head.version }));
    }
    let is_the_end = head.version == *version;
    if is_the_end && (head.hash != *hash || head.bytes != *bytes) {
        return Ok(Some(Difference::Changed));
    }
    if let Depth::UpTo(most) = depth
        && (is_the_end || *bytes > most)
    {
        *not_hashed += 1;
        return Ok(None);
    }
    match hash_of(log, *bytes) {
        Ok(Some(found)) if found == *hash => Ok(None),
        Ok(Some(_)) => Ok(Some(Difference::Changed)),
        // The head in the database is beyond the end of the file.
        Ok(None) => Ok(Some(Difference::Unreadable { why: "its log is shorter than the database records".to_owned() })),
        Err(error) => Ok(Some(Difference::Unreadable { why: error.to_string() })),
    }
}

/// The SHA-256 of the first bytes of a log; none if it has fewer.
fn hash_of(mut log: Box<dyn BufRead + Send>, bytes: u64) -> io::Result<Option<Digest>> {
    let mut hash = RunningHash::new();
    let mut left = bytes;
    while left > 0 {
        let part = match log.fill_buf() {
            Ok([]) => return Ok(None),
            Ok(part) => part,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let length = part.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        hash.update(&part[..length]);
        log.consume(length);
        left -= length as u64;
    }
    Ok(Some(hash.digest()))
}

fn account_differs(remembered: &AccountHead, present: &dyn StoreContent) -> Result<Option<Difference>> {
    let Some(account) = present.account(&remembered.account)? else {
        // An account is deleted with the threads of its chain.
        let is_buried = present.buried(&remembered.account)?.is_some();
        return Ok((!is_buried).then_some(Difference::NoAccount));
    };
    Ok(match account.version.cmp(&remembered.version) {
        std::cmp::Ordering::Less => Some(Difference::AccountOlder { have: account.version }),
        std::cmp::Ordering::Equal if AccountHead::from(&account) != *remembered => Some(Difference::AccountChanged),
        _ => None,
    })
}
