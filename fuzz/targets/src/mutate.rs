//! Small damage to an input, from a number; the same from the same number.

/// Words that parsers here give a meaning to.
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

/// Chance, from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
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
pub fn mutate(inputs: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = inputs[chance.below(inputs.len())].clone();
    for _ in 0..=chance.below(4) {
        change(&mut bytes, inputs, chance);
    }
    bytes
}

fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], chance: &mut Chance) {
    let (from, to) = stretch(bytes.len(), chance);
    match chance.below(10) {
        0 | 1 if !bytes.is_empty() => {
            let at = chance.below(bytes.len());
            bytes[at] ^= 1 << chance.below(8);
        }
        2 if !bytes.is_empty() => {
            let at = chance.below(bytes.len());
            bytes[at] = chance.number() as u8;
        }
        3 => drop(bytes.drain(from..to)),
        4 => {
            let copy = bytes[from..to].to_vec();
            let at = chance.below(bytes.len() + 1);
            bytes.splice(at..at, copy);
        }
        5 => bytes.truncate(from),
        6 => {
            let word = WORDS[chance.below(WORDS.len())];
            bytes.splice(from..from, word.iter().copied());
        }
        7 => {
            let other = &inputs[chance.below(inputs.len())];
            let (start, end) = stretch(other.len(), chance);
            bytes.splice(from..to, other[start..end].iter().copied());
        }
        _ => swap_lines(bytes, chance),
    }
}

/// A stretch of mostly a few bytes.
fn stretch(length: usize, chance: &mut Chance) -> (usize, usize) {
    let from = chance.below(length + 1);
    let most = if chance.below(4) == 0 { length - from } else { (length - from).min(16) };
    (from, from + chance.below(most + 1))
}

/// Swaps, removes or doubles whole lines.
fn swap_lines(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let mut lines: Vec<Vec<u8>> = bytes.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if lines.is_empty() {
        return;
    }
    let one = chance.below(lines.len());
    let other = chance.below(lines.len());
    match chance.below(3) {
        0 => lines.swap(one, other),
        1 => drop(lines.remove(one)),
        _ => {
            let copy = lines[one].clone();
            lines.insert(other, copy);
        }
    }
    *bytes = lines.concat();
}
