//! Selects the rows of a table to list. The others are only summed.

use std::cmp::Reverse;

/// Rows of a table, in the table's order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split<T> {
    /// Rows that the table lists.
    pub(crate) listed: Vec<T>,
    /// Rows that are only summed.
    pub(crate) others: Vec<T>,
}

/// Lists the first `most` of `rows`, and the first `most` by each of `numbers`. Otherwise a reader
/// who sorts the table by another number would miss its largest rows.
///
/// A row whose number is zero is never listed for that number.
pub(crate) fn split<T>(rows: Vec<T>, most: usize, numbers: &[&dyn Fn(&T) -> u64]) -> Split<T> {
    let mut is_listed: Vec<bool> = (0..rows.len()).map(|i| i < most).collect();
    for number in numbers {
        let mut order: Vec<(u64, usize)> = rows.iter().map(number).zip(0..).collect();
        order.sort_by_key(|&(number, i)| (Reverse(number), i));
        for (_, i) in order.into_iter().take(most).filter(|(n, _)| *n > 0) {
            is_listed[i] = true;
        }
    }
    let (listed, others): (Vec<_>, Vec<_>) = rows.into_iter().zip(is_listed).partition(|r| r.1);
    let rows = |rows: Vec<(T, bool)>| rows.into_iter().map(|(row, _)| row).collect();
    Split {
        listed: rows(listed),
        others: rows(others),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_by_every_number_are_listed_in_the_order_of_the_table() {
        let rows = vec![
            (9, 1, 0),
            (8, 2, 0),
            (7, 0, 0),
            (6, 5, 0),
            (5, 4, 3),
            (4, 3, 0),
        ];
        let found = split(rows, 2, &[&|row| row.1, &|row| row.2]);
        assert_eq!(found.listed, [(9, 1, 0), (8, 2, 0), (6, 5, 0), (5, 4, 3)]);
        assert_eq!(found.others, [(7, 0, 0), (4, 3, 0)]);
    }

    #[test]
    fn without_further_numbers_the_first_are_listed() {
        let found = split(vec![3, 2, 1], 2, &[]);
        assert_eq!((found.listed, found.others), (vec![3, 2], vec![1]));
        assert_eq!(split(vec![1], 2, &[]).others, Vec::<i32>::new());
    }
}
