//! Small damage to an input, from a seed; the same for the same seed.

/// Words that parsers here interpret.
const WORDS: [&[u8]; 24] = [
    b"\n",
    b"\0",
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"null",
    b"true",
    b"-0",
    b"1e400",
    b"18446744073709551616",
    b"9007199254740993",
    b"\xff",
    b"\r\n",
    b"#!",
    b"--",
    b"../",
    b"\"seq\":0,",
];

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Begins at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.number() % end as u64) as usize }
    }
}

/// One of the inputs with one to four small changes.
pub fn mutate(inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(4) {
        change(&mut bytes, inputs, random);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    let (from, to) = stretch(bytes.len(), random);
    match random.below(10) {
        0 | 1 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        2 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] = random.number() as u8;
        }
        3 => drop(bytes.drain(from..to)),
        4 => {
            let copy = bytes[from..to].to_vec();
            let at = random.below(bytes.len() + 1);
            bytes.splice(at..at, copy);
        }
        5 => bytes.truncate(from),
        6 => {
            let word = WORDS[random.below(WORDS.len())];
            bytes.splice(from..from, word.iter().copied());
        }
        7 => {
            let other = &inputs[random.below(inputs.len())];
            let (start, end) = stretch(other.len(), random);
            bytes.splice(from..to, other[start..end].iter().copied());
        }
        _ => swap_lines(bytes, random),
    }
}

/// A range, usually of a few bytes.
fn stretch(length: usize, random: &mut Random) -> (usize, usize) {
    let from = random.below(length + 1);
    let most = if random.below(4) == 0 { length - from } else { (length - from).min(16) };
    (from, from + random.below(most + 1))
}

/// Swaps, removes or doubles whole lines.
fn swap_lines(bytes: &mut Vec<u8>, random: &mut Random) {
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        return;
    }
    let one = random.below(lines.len());
    let other = random.below(lines.len());
    match random.below(3) {
        0 => lines.swap(one, other),
        1 => drop(lines.remove(one)),
        _ => {
            let copy = lines[one].clone();
            lines.insert(other, copy);
        }
    }
    *bytes = lines.concat();
}
