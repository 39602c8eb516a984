//! Reading a whole log, or the rest of one. Behind its first chunk somebody else reads and hashes ahead, while whoever asked decodes,
//! checks and folds. That is the greater part of the work, so whoever reads ahead decodes too when there is nothing else to do.

use std::io::{self, BufRead, Read};
use std::sync::mpsc::{self, TrySendError};
use std::thread;

use selvedge_model::LogId;

use super::{Damage, Entry, Flaw, Scanner};
use crate::hash::RunningHash;
use crate::head::{Head, Tail};
use crate::line::{self, Line};
use crate::strict::MAX_LINE_BYTES;

/// How many bytes are read at once.
const CHUNK: usize = 256 << 10;
/// How many chunks are read ahead at most.
const AHEAD: usize = 2;

/// What an examination found.
#[derive(Debug)]
pub struct Examined {
    /// The end of the log behind the last checkpoint that held.
    pub tail: Option<Tail>,
    /// The first thing that did not hold; absent when the file ends with a checkpoint that held.
    pub damage: Option<Damage>,
    /// The end of the log at the version that was watched for.
    pub passed: Option<Head>,
    /// How many bytes the file has.
    pub bytes: u64,
    /// What line 0 calls the log; perhaps nothing behind it is signed.
    pub log_id: Option<LogId>,
}

impl Examined {
    /// The end of the log behind the last checkpoint that held.
    pub fn head(&self) -> Option<&Head> {
        self.tail.as_ref().and_then(|tail| tail.head.as_ref())
    }
}

/// Reads a whole log and hands each changeset that held to `each`. Memory use depends on the longest changeset, not on the log.
pub fn examine(reader: impl BufRead + Send, scanner: Scanner<'_>, each: impl FnMut(Entry)) -> io::Result<Examined> {
    in_chunks(reader, scanner, each, CHUNK)
}

fn in_chunks(
    mut reader: impl BufRead + Send,
    scanner: Scanner<'_>,
    each: impl FnMut(Entry),
    length: usize,
) -> io::Result<Examined> {
    let mut hash = scanner.hash.clone();
    let mut examination = Examination { scanner, each, good: None, damage: None };
    let mut chunk = Chunk::default();
    let mut bytes = chunk.fill(&mut reader, &mut hash, length)?;
    let mut holds = examination.chunk(&mut chunk);
    if chunk.bytes.len() >= length && holds {
        if let Some(more) = examination.ahead(&mut reader, &hash, length)? {
            return examination.end(bytes + more);
        }
        // Nobody can be had to read ahead.
        while holds {
            match chunk.fill(&mut reader, &mut hash, length)? {
                0 => break,
                more => bytes += more,
            }
            holds = examination.chunk(&mut chunk);
        }
    }
    bytes += io::copy(&mut reader, &mut io::sink())?;
    examination.end(bytes)
}

/// Reads and hashes to the end, for whoever takes the chunks, and only reads when nobody does any more; gives how many bytes there were.
fn read_ahead(
    mut reader: impl BufRead,
    mut hash: RunningHash,
    length: usize,
    hand: &mpsc::SyncSender<Chunk>,
    used: &mpsc::Receiver<Chunk>,
) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        let mut chunk = used.try_recv().unwrap_or_default();
        match chunk.fill(&mut reader, &mut hash, length)? {
            0 => return Ok(bytes),
            more => bytes += more,
        }
        if !hand_on(chunk, hand) {
            return Ok(bytes + io::copy(&mut reader, &mut io::sink())?);
        }
    }
}

/// Hands a chunk to whoever takes them, and decodes its lines as long as that one has enough; false if nobody takes it.
fn hand_on(mut chunk: Chunk, hand: &mpsc::SyncSender<Chunk>) -> bool {
    loop {
        match hand.try_send(chunk) {
            Ok(()) => return true,
            Err(TrySendError::Disconnected(_)) => return false,
            Err(TrySendError::Full(kept)) => chunk = kept,
        }
        if !chunk.decode_one() {
            return hand.send(chunk).is_ok();
        }
    }
}

/// Some lines.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// Where each line ends, and the hash of everything up to there.
    ends: Vec<(usize, RunningHash)>,
    /// The first of them, decoded.
    decoded: Vec<Result<Line, Flaw>>,
}

impl Chunk {
    /// Reads lines until there are this many bytes of them; gives how many there are, none at the end.
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

    /// Decodes the next line; false if there is none, or none that is worth it behind one that can't be read.
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

fn decode(bytes: &[u8]) -> Result<Line, Flaw> {
    let text = bytes.strip_suffix(b"\n").ok_or(Flaw::Torn)?;
    line::decode(text).map_err(|error| Flaw::Unreadable(error.to_string()))
}

/// An examination as far as it has come.
struct Examination<'s, E> {
    scanner: Scanner<'s>,
    each: E,
    good: Option<(Head, RunningHash)>,
    damage: Option<Damage>,
}

impl<E: FnMut(Entry)> Examination<'_, E> {
    /// Goes through the rest with somebody who reads ahead; gives how many bytes that had, or nothing if there is nobody.
    fn ahead(
        &mut self,
        reader: &mut (impl BufRead + Send),
        hash: &RunningHash,
        length: usize,
    ) -> io::Result<Option<u64>> {
        thread::scope(|scope| {
            let (hand, chunks) = mpsc::sync_channel(AHEAD);
            let (give_back, used) = mpsc::channel();
            let read = move || read_ahead(reader, hash.clone(), length, &hand, &used);
            let Ok(reading) = thread::Builder::new().spawn_scoped(scope, read) else { return Ok(None) };
            while let Ok(mut chunk) = chunks.recv()
                && self.chunk(&mut chunk)
            {
                // Whoever has come to the end needs none.
                _ = give_back.send(chunk);
            }
            // Gone, so that whoever reads stops to hash when something does not hold.
            drop(chunks);
            reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)).map(Some)
        })
    }

    /// Takes some lines; says whether all of them held.
    fn chunk(&mut self, chunk: &mut Chunk) -> bool {
        let mut decoded = chunk.decoded.drain(..);
        let mut begin = 0;
        for (end, hash) in &chunk.ends {
            let bytes = &chunk.bytes[std::mem::replace(&mut begin, *end)..*end];
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
                    return false;
                }
            }
        }
        true
    }

    fn end(self, bytes: u64) -> io::Result<Examined> {
        let Self { mut scanner, good, mut damage, .. } = self;
        if damage.is_none() && !scanner.open.is_empty() {
            damage = Some(scanner.damage(Flaw::Torn));
        }
        if let Err(found) = scanner.check_last_signature() {
            // Only the last signature was to be checked and it does not hold: nothing before it was checked either.
            return Ok(Examined { tail: None, damage: Some(found), passed: None, bytes, log_id: scanner.log_id });
        }
        let tail = good.map(|(head, hash)| Tail::behind(head, hash));
        Ok(Examined { tail, damage, passed: scanner.passed, bytes, log_id: scanner.log_id })
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
        let said = |turn: u32| Changeset {
            messages: vec![Message::text(Role::User, format!("turn {turn}")); 3],
            ..Changeset::empty(Reason::UserMessage)
        };
        for changeset in std::iter::once(birth).chain((0..6).map(said)) {
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

    /// Everything that an examination says.
    fn told(bytes: &[u8], thread: &ThreadId, trust: &Trust, signatures: Signatures, length: usize) -> String {
        let mut versions = Vec::new();
        let scanner = Scanner::new(thread, trust, signatures).watching(Some(2));
        let examined = in_chunks(bytes, scanner, |entry| versions.push(entry.head.version), length).unwrap();
        assert_eq!(examined.bytes, bytes.len() as u64);
        format!("{versions:?} {examined:?}")
    }

    #[test]
    fn what_is_decoded_ahead_is_what_stands_there() {
        let (thread, signer) = (ThreadId::new("scribe-0123456789ab").unwrap(), Signer::from_pem(PEM).unwrap());
        let mut bytes = log(&thread, &signer);
        bytes.extend_from_slice(b"not a line\nnor this\n");
        let mut chunk = Chunk::default();
        chunk.fill(&mut bytes.as_slice(), &mut RunningHash::new(), usize::MAX).unwrap();
        while chunk.decode_one() {}
        let lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').map(decode).collect();
        assert_eq!(chunk.decoded.len(), lines.len() - 1, "nothing is decoded behind what can't be");
        assert!(chunk.decoded.last().is_some_and(Result::is_err));
        assert!(chunk.decoded.iter().zip(&lines).all(|(ahead, line)| ahead == line));
    }

    /// However far ahead it is read, the same is said of a log: a whole one, a damaged one and one that is cut, wherever that is.
    #[test]
    fn what_is_said_of_a_log_does_not_depend_on_how_it_is_read() {
        let (thread, signer) = (ThreadId::new("scribe-0123456789ab").unwrap(), Signer::from_pem(PEM).unwrap());
        let trust = Trust::of(&[signer.public()]);
        let whole = log(&thread, &signer);
        let agree = |bytes: &[u8], signatures| {
            let alone = told(bytes, &thread, &trust, signatures, usize::MAX);
            for length in [1, 700, 3_000] {
                assert_eq!(told(bytes, &thread, &trust, signatures, length), alone);
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
