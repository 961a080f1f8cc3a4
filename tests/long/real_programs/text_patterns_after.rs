//! A search for many words at once.

use aho_corasick::AhoCorasickBuilder;

#[path = "random.rs"]
mod random;
use random::Random;

fn main() {
    let mut random = Random(7);
    let words: Vec<String> = (0..30_000).map(|_| random.word()).collect();
    let mut text = String::new();
    for _ in 0..80_000 {
        let word = if random.below(2) == 0 { words[random.below(words.len())].clone() } else { random.word() };
        text.push_str(&word);
    }
    let automaton = AhoCorasickBuilder::new().build(&words).expect("few enough words");
    println!("{}", automaton.find_iter(&text).count());
}
