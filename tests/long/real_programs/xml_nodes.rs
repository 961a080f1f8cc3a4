//! A large XML document, and repeated walks over its elements.

use std::fmt::Write;

#[path = "random.rs"]
mod random;

#[inline(never)]
fn document(random: &mut random::Random) -> String {
    let mut text = String::from("<log>");
    for i in 0..60_000 {
        write!(text, "<entry><id>{i}</id><value>{}</value></entry>", random.below(1000)).expect("memory");
    }
    text + "</log>"
}

#[inline(never)]
fn walk(document: &roxmltree::Document) -> usize {
    let entries = document.root_element().children();
    entries.map(|entry| entry.children().filter(|field| field.is_element()).count()).sum()
}

fn main() {
    let text = document(&mut random::Random(7));
    let document = roxmltree::Document::parse(&text).expect("well-formed text");
    println!("{}", (0..20).map(|_| walk(&document)).sum::<usize>());
}
