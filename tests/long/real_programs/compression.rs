//! Compression of text made of random words, of which few are frequent.

#[path = "random.rs"]
mod random;
use random::Random;

fn main() {
    let mut random = Random(7);
    let words: Vec<String> = (0..20_000).map(|_| random.word()).collect();
    let mut text = Vec::new();
    while text.len() < 3 << 20 {
        let most = 1 + random.below(words.len());
        text.extend_from_slice(words[random.below(most)].as_bytes());
        text.push(b' ');
    }
    let mut out = vec![0; zstd_safe::compress_bound(text.len())];
    println!("{}", zstd_safe::compress(&mut out[..], &text, 7).expect("room for the result"));
}
