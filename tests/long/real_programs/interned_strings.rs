//! Words that are interned, and then resolved in random order.

use string_interner::StringInterner;

#[path = "random.rs"]
mod random;
use random::Random;

const WORDS: usize = 400_000;

fn main() {
    let mut random = Random(7);
    let words: Vec<String> = (0..WORDS).map(|_| random.word()).collect();
    let mut interner = StringInterner::default();
    let mut symbols: Vec<_> = words.iter().map(|word| interner.get_or_intern(word.as_str())).collect();
    drop(words);
    for i in (1..symbols.len()).rev() {
        symbols.swap(i, random.below(i));
    }
    let mut bytes = 0usize;
    for _ in 0..4 {
        for &symbol in &symbols {
            bytes += interner.resolve(symbol).expect("an interned word").as_bytes()[0] as usize;
        }
    }
    println!("{bytes}");
}
