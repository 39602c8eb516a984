//! Reads a whole log, or the rest of one. After the first chunk a second thread reads and hashes ahead, while the calling thread decodes,
//! verifies and folds. Decoding and folding take longer, so the reading thread also decodes lines while its queue is full.

use std::io::{self, BufRead, Read};
use std::num::NonZeroU32;
use std::sync::mpsc::{self, TrySendError};
use std::thread;

use selvedge_model::{Digest, LogId};

use super::{Damage, Flaw, ScannedChangeset, Scanner};
use crate::hash::RunningHash;
use crate::head::{Head, Tail};
use crate::line::{self, Decoded};
use crate::strict::MAX_LINE_BYTES;

/// The number of bytes that are read at once.
const CHUNK: usize = 256 << 10;
/// The most chunks that are read ahead.
const AHEAD: usize = 2;

/// The result of an examination.
#[derive(Debug)]
pub struct Examined {
    /// The end of the log after the last valid checkpoint.
    pub tail: Option<Tail>,
    /// The first damage; absent if the file ends with a valid checkpoint.
    pub damage: Option<Damage>,
    /// The end of the log at the version that was watched for.
    pub passed: Option<Head>,
    /// The number of bytes in the file.
    pub bytes: u64,
    /// The first line whose payload this program does not understand, although it is as it was signed. No changeset from there on was
    /// passed to the caller, and `tail` ends before it.
    pub unread: Option<Damage>,
    /// The versions and signers of the valid checkpoints from that line on.
    pub unread_signers: Vec<(u64, Digest)>,
    /// The end of the log after the last valid checkpoint, understood or not.
    pub verified: Option<Head>,
    /// The log id in line 0; possibly nothing after it is signed.
    pub log_id: Option<LogId>,
}

impl Examined {
    /// The end of the log after the last valid checkpoint.
    pub fn head(&self) -> Option<&Head> {
        self.tail.as_ref().and_then(|tail| tail.head.as_ref())
    }
}

/// Reads a whole log and passes each valid changeset to `each`. Memory use depends on the longest changeset, not on the log.
pub fn examine(
    reader: impl BufRead + Send,
    scanner: Scanner<'_>,
    each: impl FnMut(ScannedChangeset),
) -> io::Result<Examined> {
    in_chunks(reader, scanner, each, CHUNK)
}

fn in_chunks(
    mut reader: impl BufRead + Send,
    scanner: Scanner<'_>,
    each: impl FnMut(ScannedChangeset),
    length: usize,
) -> io::Result<Examined> {
    let mut hash = scanner.hash.clone();
    let mut examination = Examination { scanner, each, good: None, damage: None, rest: Vec::new() };
    let mut chunk = Chunk::default();
    let mut bytes = chunk.fill(&mut reader, &mut hash, length)?;
    examination.chunk(&mut chunk);
    if chunk.bytes.len() >= length {
        if let Some(more) = examination.ahead(&mut reader, &hash, length)? {
            return examination.end(bytes + more);
        }
        // No thread could be started to read ahead.
        loop {
            match chunk.fill(&mut reader, &mut hash, length)? {
                0 => break,
                more => bytes += more,
            }
            examination.chunk(&mut chunk);
        }
    }
    examination.end(bytes)
}

/// Reads and hashes to the end, and sends the chunks; returns the number of bytes.
fn read_ahead(
    mut reader: impl BufRead,
    mut hash: RunningHash,
    length: usize,
    sender: &mpsc::SyncSender<Chunk>,
    used: &mpsc::Receiver<Chunk>,
) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        let mut chunk = used.try_recv().unwrap_or_default();
        match chunk.fill(&mut reader, &mut hash, length)? {
            0 => return Ok(bytes),
            more => bytes += more,
        }
        if !send_or_decode(chunk, sender) {
            return Ok(bytes + io::copy(&mut reader, &mut io::sink())?);
        }
    }
}

/// Sends a chunk, and decodes its lines while the queue is full; false if the receiver is gone.
fn send_or_decode(mut chunk: Chunk, sender: &mpsc::SyncSender<Chunk>) -> bool {
    loop {
        match sender.try_send(chunk) {
            Ok(()) => return true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(kept)) => chunk = kept,
        }
        if !chunk.decode_one() {
            return sender.send(chunk).is_ok();
        }
    }
}

/// Some lines of a log.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// The end of each line, and the hash of everything up to there.
    ends: Vec<(usize, RunningHash)>,
    /// The first lines, decoded.
    decoded: Vec<Result<Decoded, Flaw>>,
}

impl Chunk {
    /// Reads lines until there are at least `length` bytes; returns the number of bytes, 0 at the end.
    fn fill(&mut self, reader: &mut impl BufRead, hash: &mut RunningHash, length: usize) -> io::Result<u64> {
        self.bytes.clear();
        self.ends.clear();
        self.decoded.clear();
        while self.bytes.len() < length {
            let begin = self.bytes.len();
            if reader.take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut self.bytes)? == 0 {
                break;
            }
            hash.update(&self.bytes[begin..]);
            self.ends.push((self.bytes.len(), hash.clone()));
        }
        Ok(self.bytes.len() as u64)
    }

    /// Decodes the next line; false if there is none, or if an earlier one can't be read.
    fn decode_one(&mut self) -> bool {
        let next = self.decoded.len();
        let Some((end, _)) = self.ends.get(next).filter(|_| self.decoded.last().is_none_or(Result::is_ok)) else {
            return false;
        };
        let begin = next.checked_sub(1).map_or(0, |before| self.ends[before].0);
        self.decoded.push(decode(&self.bytes[begin..*end]));
        true
    }
}

fn decode(bytes: &[u8]) -> Result<Decoded, Flaw> {
    // Only the start of a line that is too long was read, so it may lack its end.
    if bytes.len() + usize::from(!bytes.ends_with(b"\n")) > MAX_LINE_BYTES {
        return Err(Flaw::Unreadable(format!("it is longer than {MAX_LINE_BYTES} bytes")));
    }
    let text = bytes.strip_suffix(b"\n").ok_or(Flaw::Torn)?;
    line::decode_as_far(text).map_err(|error| Flaw::Unreadable(error.to_string()))
}

/// The state of an examination.
struct Examination<'s, E> {
    scanner: Scanner<'s>,
    each: E,
    good: Option<(Head, RunningHash)>,
    damage: Option<Damage>,
    /// After the damage: a line whose end was not read yet.
    rest: Vec<u8>,
}

impl<E: FnMut(ScannedChangeset)> Examination<'_, E> {
    /// Processes the rest with a second thread that reads ahead; returns its number of bytes, or `None` if no thread could be started.
    fn ahead(
        &mut self,
        reader: &mut (impl BufRead + Send),
        hash: &RunningHash,
        length: usize,
    ) -> io::Result<Option<u64>> {
        thread::scope(|scope| {
            let (sender, chunks) = mpsc::sync_channel(AHEAD);
            let (give_back, used) = mpsc::channel();
            let read = move || read_ahead(reader, hash.clone(), length, &sender, &used);
            let Ok(reading) = thread::Builder::new().spawn_scoped(scope, read) else { return Ok(None) };
            while let Ok(mut chunk) = chunks.recv() {
                self.chunk(&mut chunk);
                // A reader at the end of the file needs no more chunks.
                _ = give_back.send(chunk);
            }
            reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(Some)
        })
    }

    /// Processes some lines. Those after the damage are only searched for signed checkpoints.
    fn chunk(&mut self, chunk: &mut Chunk) {
        let mut decoded = chunk.decoded.drain(..);
        let mut begin = 0;
        for (end, hash) in &chunk.ends {
            let bytes = &chunk.bytes[std::mem::replace(&mut begin, *end)..*end];
            if self.damage.is_some() {
                self.search(bytes);
                continue;
            }
            let taken = match decoded.next().unwrap_or_else(|| decode(bytes)) {
                Ok(line) => self.scanner.line(bytes, line, hash),
                Err(flaw) => Err(self.scanner.damage(flaw)),
            };
            match taken {
                Ok(Some(entry)) => {
                    self.good = Some((entry.head.clone(), hash.clone()));
                    (self.each)(entry);
                }
                Ok(None) => {}
                Err(found) => {
                    self.damage = Some(found);
                    self.search(bytes);
                }
            }
        }
    }

    /// Searches a piece after the damage for a signed checkpoint, or the damaged line itself: damage without a `\n` may stand right before
    /// a checkpoint. A piece without its `\n` continues in the next one.
    fn search(&mut self, piece: &[u8]) {
        let Some(text) = piece.strip_suffix(b"\n") else {
            self.rest.clear();
            self.rest.extend_from_slice(piece);
            return;
        };
        self.rest.extend_from_slice(text);
        let found = self.scanner.signed_version(&self.rest);
        self.rest.clear();
        if let Some(damage) = &mut self.damage {
            let ahead = found.map(|version| version.saturating_sub(damage.version).saturating_add(1));
            let ahead = ahead.and_then(|ahead| NonZeroU32::new(u32::try_from(ahead).unwrap_or(u32::MAX)));
            damage.signed_ahead = damage.signed_ahead.max(ahead);
        }
    }

    fn end(self, bytes: u64) -> io::Result<Examined> {
        let Self { mut scanner, good, mut damage, .. } = self;
        if damage.is_none() && scanner.count > 0 {
            damage = Some(scanner.damage(Flaw::Torn));
        }
        if let Err(found) = scanner.check_last_signature() {
            // Only the last signature was to be verified and it is invalid: so nothing before it is verified either.
            return Ok(Examined {
                tail: None,
                damage: Some(found),
                passed: None,
                bytes,
                unread: None,
                unread_signers: Vec::new(),
                verified: None,
                log_id: scanner.log_id,
            });
        }
        let tail = good.map(|(head, hash)| Tail::behind(head, hash));
        let Scanner { passed, unread, unread_signers, head: verified, log_id, .. } = scanner;
        Ok(Examined { tail, damage, passed, bytes, unread, unread_signers, verified, log_id })
    }
}

#[cfg(test)]
mod tests {
    use selvedge_model::event::NewThread;
    use selvedge_model::{AgentId, Changeset, Message, Reason, Role, Status, ThreadId, Timestamp};

    use super::*;
    use crate::scan::Signatures;
    use crate::writer::{self, Addition};
    use crate::{Signer, Trust};

    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n";

    fn log(thread: &ThreadId, signer: &Signer) -> Vec<u8> {
        let mut tail = Tail::empty(LogId::new("00112233445566778899aabbccddeeff").unwrap());
        let mut bytes = Vec::new();
        let birth = Changeset::creating(NewThread::of(AgentId::new("scribe").unwrap()));
        let turn_of = |turn: u32| Changeset {
            messages: vec![Message::text(Role::User, format!("turn {turn}")); 3],
            ..Changeset::empty(Reason::UserMessage)
        };
        for changeset in std::iter::once(birth).chain((0..6).map(turn_of)) {
            let reason = changeset.reason;
            let events = writer::events(&tail, Vec::new(), changeset, Vec::new());
            let addition = Addition {
                thread_id: thread,
                events: &events,
                reason,
                run_id: None,
                parent_run_id: None,
                turn: None,
                key: None,
                epoch: 0,
                with: Vec::new(),
                status: Status::Created,
            };
            let written = writer::write(&tail, addition, signer, Timestamp::from_micros(0)).unwrap();
            bytes.extend_from_slice(&written.bytes);
            tail = written.tail;
        }
        bytes
    }

    /// The complete result of an examination, as text.
    fn result(bytes: &[u8], thread: &ThreadId, trust: &Trust, signatures: Signatures, length: usize) -> String {
        let mut versions = Vec::new();
        let scanner = Scanner::new(thread, trust, signatures).watching(Some(2));
        let examined = in_chunks(bytes, scanner, |entry| versions.push(entry.head.version), length).unwrap();
        assert_eq!(examined.bytes, bytes.len() as u64);
        format!("{versions:?} {examined:?}")
    }

    #[test]
    fn lines_decoded_ahead_are_decoded_correctly() {
        let thread = ThreadId::new("scribe-0123456789ab").unwrap();
        let signer = Signer::from_pem(PEM).unwrap();
        let mut bytes = log(&thread, &signer);
        bytes.extend_from_slice(b"not a line\nnor this\n");
        let mut chunk = Chunk::default();
        chunk.fill(&mut bytes.as_slice(), &mut RunningHash::new(), usize::MAX).unwrap();
        while chunk.decode_one() {}
        let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').map(decode).collect();
        assert_eq!(chunk.decoded.len(), lines.len() - 1, "decoding stops at a line that can't be read");
        assert!(chunk.decoded.last().is_some_and(Result::is_err));
        assert!(chunk.decoded.iter().zip(&lines).all(|(ahead, line)| ahead == line));
    }

    /// For a sound log, a damaged one and a truncated one, the result does not depend on the chunk length.
    #[test]
    fn the_result_does_not_depend_on_how_a_log_is_read() {
        let thread = ThreadId::new("scribe-0123456789ab").unwrap();
        let signer = Signer::from_pem(PEM).unwrap();
        let trust = Trust::of(&[signer.public()]);
        let whole = log(&thread, &signer);
        let agree = |bytes: &[u8], signatures| {
            let alone = result(bytes, &thread, &trust, signatures, usize::MAX);
            for length in [1, 700, 3_000] {
                assert_eq!(result(bytes, &thread, &trust, signatures, length), alone);
            }
        };
        agree(&whole, Signatures::Every);
        for at in (0..whole.len()).step_by(97) {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            agree(&flipped, Signatures::Last);
            agree(&whole[..at], Signatures::Every);
        }
    }
}
