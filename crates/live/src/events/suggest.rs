//! Suggests names that are similar to an unknown one.

/// Returns at most `n` candidates similar to `name`, the most similar first. A candidate is similar
/// if it contains the name, or differs from it in at most two of five letters.
pub fn nearest(name: &str, candidates: impl Iterator<Item = String>, n: usize) -> Vec<String> {
    let name = name.to_lowercase();
    let length = name.chars().count();
    let rank = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        let distance = edit_distance(&name, &candidate);
        let is_near = distance * 5 <= length.max(candidate.chars().count()) * 2;
        let is_part = length >= 3 && candidate.contains(&name);
        (is_near || is_part).then_some(distance)
    };
    let mut near: Vec<(usize, String)> = candidates
        .filter_map(|candidate| Some((rank(&candidate)?, candidate)))
        .collect();
    near.sort();
    near.dedup();
    near.into_iter().take(n).map(|(_, name)| name).collect()
}

/// Returns the end of a message with the most similar candidates, or nothing if there are none.
pub fn near_it(name: &str, candidates: impl Iterator<Item = String>) -> String {
    let near = nearest(name, candidates, 3);
    match near.is_empty() {
        true => String::new(),
        false => format!("; similar: {}", near.join(", ")),
    }
}

/// Levenshtein distance.
fn edit_distance(a: &str, b: &str) -> usize {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let near = |name: &str| {
            let all = [
                "OCR",
                "tsc",
                "ARITH",
                "cycles",
                "page-faults",
                "llc.miss",
                "l2.miss",
            ];
            nearest(name, all.map(str::to_owned).into_iter(), 2)
        };
        assert!(near("nosuch").is_empty());
        assert_eq!(near("cycle"), ["cycles"]);
        assert_eq!(near("faults"), ["page-faults"]);
        assert_eq!(near("LLC-miss"), ["llc.miss", "l2.miss"]);
        assert_eq!(near_it("nosuch", std::iter::empty()), "");
    }
}
