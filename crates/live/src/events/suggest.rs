//! Names near one that does not exist.

/// The `n` candidates nearest to `name`, the nearest first.
pub fn nearest(name: &str, candidates: impl Iterator<Item = String>, n: usize) -> Vec<String> {
    let name = name.to_lowercase();
    let mut near: Vec<(usize, String)> = candidates
        .map(|candidate| (distance(&name, &candidate.to_lowercase()), candidate))
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(n).map(|(_, name)| name).collect()
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let change = corner + usize::from(ca != *cb);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}
