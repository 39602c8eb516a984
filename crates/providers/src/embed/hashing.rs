//! An embedder without a model: every word and every three consecutive characters of a word are hashed to a dimension and a sign.
//!
//! Texts with the same words, or with forms of the same words, get similar vectors; synonyms do not. The same text gets the same vector on
//! every machine and in every version of this name.

use std::collections::BTreeMap;

use selvedge_model::blocking::BoxFuture;
use selvedge_model::{Cancel, EmbedError, Embedder};

/// The length of the vectors.
const DIMENSIONS: usize = 256;

/// The weight of three characters of a word, relative to the whole word.
const PART_WEIGHT: f32 = 0.5;

/// The offline embedder.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hashing;

impl Embedder for Hashing {
    fn name(&self) -> &str {
        "hashing-1"
    }

    fn dimensions(&self) -> usize {
        DIMENSIONS
    }

    fn embed<'a>(
        &'a self,
        texts: &'a [String],
        cancel: &'a Cancel,
    ) -> BoxFuture<'a, Result<Vec<Vec<f32>>, EmbedError>> {
        Box::pin(async move {
            let mut vectors = Vec::with_capacity(texts.len());
            for text in texts {
                if cancel.said().is_some() {
                    return Err(EmbedError::Stopped);
                }
                vectors.push(vector(text));
            }
            Ok(vectors)
        })
    }
}

/// The vector of a text.
fn vector(text: &str) -> Vec<f32> {
    let mut features: BTreeMap<u64, f32> = BTreeMap::new();
    let lower = text.to_lowercase();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        *features.entry(hash(b'w', word)).or_default() += 1.0;
        let padded: Vec<char> = [' '].into_iter().chain(word.chars()).chain([' ']).collect();
        for part in padded.windows(3) {
            let part: String = part.iter().collect();
            *features.entry(hash(b'p', &part)).or_default() += PART_WEIGHT;
        }
    }
    let mut vector = vec![0.0f32; DIMENSIONS];
    for (feature, count) in features {
        let place = usize::try_from(feature % DIMENSIONS as u64).unwrap_or_default();
        let sign = if feature >> 63 == 0 { 1.0 } else { -1.0 };
        // A word that is repeated counts more, but not in proportion.
        vector[place] += sign * (1.0 + count.ln().max(-0.5));
    }
    let length = vector.iter().map(|one| one * one).sum::<f32>().sqrt();
    if length > 0.0 {
        for one in &mut vector {
            *one /= length;
        }
    }
    vector
}

/// The 64-bit FNV-1a hash of a feature, mixed so that its high bits depend on all of it.
fn hash(kind: u8, text: &str) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in [kind].into_iter().chain(text.bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use selvedge_model::blocking::wait;

    use super::*;

    fn embed(texts: &[&str]) -> Vec<Vec<f32>> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        wait(Hashing.embed(&texts, &Cancel::default())).unwrap()
    }

    fn cosine(a: &[f32], b: &[f32]) -> f32 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn a_text_is_closer_to_forms_of_its_words_than_to_other_words() {
        let vectors = embed(&["the invoices were paid", "paying an invoice", "rain is expected in Bern"]);
        assert!(cosine(&vectors[0], &vectors[1]) > cosine(&vectors[0], &vectors[2]) + 0.1);
        assert!(vectors.iter().all(|one| one.len() == Hashing.dimensions() && (cosine(one, one) - 1.0).abs() < 1e-3));
    }

    #[test]
    fn the_same_text_gets_the_same_vector_and_an_empty_one_none() {
        let vectors = embed(&["Grüezi 漢字 fn main()", "Grüezi 漢字 fn main()", " ,.- "]);
        assert_eq!(vectors[0], vectors[1]);
        assert!(vectors[2].iter().all(|one| *one == 0.0));
    }

    #[test]
    fn it_ends_when_it_is_cancelled() {
        let cancel = Cancel::default();
        cancel.say(selvedge_model::Stop::Cancelled);
        let refused = wait(Hashing.embed(&["a".to_owned()], &cancel));
        assert!(matches!(refused, Err(EmbedError::Stopped)), "{refused:?}");
    }
}
