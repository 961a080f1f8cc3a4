//! Divides memory between programs by their curves.
//!
//! Memory is given out in equal units. *Greedy* gives each unit to the program that it saves the
//! most misses. It therefore never crosses a plateau: a program that needs its whole working
//! set before anything hits gets nothing. *Look-ahead* crosses plateaus by comparing the savings
//! per unit of larger grants.

use super::curve::Curve;

/// How to divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Method {
    /// Gives each unit to the program that it saves the most misses.
    Greedy,
    /// Gives the grant of one or more units that saves the most misses per unit.
    LookAhead,
    /// Finds the division with the fewest misses of all.
    Optimal,
}

/// A division of memory and its misses.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Division {
    /// Bytes for each program, in the order given.
    pub bytes: Vec<u64>,
    /// Misses of all programs together, compulsory ones included.
    pub misses: f64,
}

/// Divides `units` units of `unit_bytes` between programs.
pub fn divide(curves: &[Curve], unit_bytes: u64, units: usize, method: Method) -> Division {
    let misses = |program: usize, units: usize| {
        let curve: &Curve = &curves[program];
        curve.misses(units as u64 * unit_bytes / curve.block_bytes)
    };
    let granted = match method {
        _ if curves.is_empty() => Vec::new(),
        Method::Greedy => step_by_step(curves.len(), units, 1, &misses),
        Method::LookAhead => step_by_step(curves.len(), units, units, &misses),
        Method::Optimal => optimal(curves.len(), units, &misses),
    };
    let each = granted.iter().enumerate();
    Division {
        misses: each.map(|(program, &units)| misses(program, units)).sum(),
        bytes: granted
            .iter()
            .map(|&units| units as u64 * unit_bytes)
            .collect(),
    }
}

/// Repeatedly makes the grant that saves the most misses per unit, of at most `ahead` units.
/// If no grant saves anything, the programs get one unit each in turn.
fn step_by_step(
    programs: usize,
    units: usize,
    ahead: usize,
    misses: &impl Fn(usize, usize) -> f64,
) -> Vec<usize> {
    let mut granted = vec![0; programs];
    let mut left = units;
    while left > 0 {
        let (mut best, mut choice) = (0.0, None);
        for (program, &has) in granted.iter().enumerate() {
            let now = misses(program, has);
            for more in 1..=ahead.min(left) {
                let saved = (now - misses(program, has + more)) / more as f64;
                if saved > best {
                    (best, choice) = (saved, Some((program, more)));
                }
            }
        }
        let (program, more) = choice.unwrap_or((left % programs, 1));
        granted[program] += more;
        left -= more;
    }
    granted
}

/// Finds the division with the fewest misses. There is at least one program.
pub(crate) fn optimal(
    programs: usize,
    units: usize,
    misses: &impl Fn(usize, usize) -> f64,
) -> Vec<usize> {
    // `least[n]`: fewest misses of the programs so far with n units.
    // `choices[p][n]`: units of program p in that division.
    let mut least: Vec<f64> = (0..=units).map(|n| misses(0, n)).collect();
    let mut choices = vec![(0..=units).collect::<Vec<usize>>()];
    for program in 1..programs {
        let best = |all: usize| {
            let with = |own: &usize| least[all - own] + misses(program, *own);
            let own = (0..=all).min_by(|a, b| with(a).total_cmp(&with(b)));
            let own = own.unwrap_or(0);
            (own, with(&own))
        };
        let (own, sums): (Vec<usize>, Vec<f64>) = (0..=units).map(best).unzip();
        choices.push(own);
        least = sums;
    }
    let mut left = units;
    let mut granted: Vec<usize> = choices
        .iter()
        .rev()
        .map(|choice| {
            let own = choice[left];
            left -= own;
            own
        })
        .collect();
    granted.reverse();
    granted
}

#[cfg(test)]
mod tests {
    use super::super::histogram::Distances;
    use super::*;

    fn curve(counts: &[(u64, u64)]) -> Curve {
        let counts = counts.to_vec();
        let distances = Distances {
            counts,
            compulsory: 0,
        };
        Curve::exact(&distances, 64)
    }

    /// A curve that hits only when all of its 60 blocks fit, and one with a gentle slope.
    fn plateau_and_slope() -> [Curve; 2] {
        let slope: Vec<(u64, u64)> = (0..100).map(|d| (d, 10)).collect();
        [curve(&[(59, 5000)]), curve(&slope)]
    }

    #[test]
    fn greedy_fails_before_a_plateau_that_look_ahead_crosses() {
        let divide = |method| divide(&plateau_and_slope(), 64, 100, method);
        assert_eq!(divide(Method::Greedy).bytes, [0, 6400]);
        for method in [Method::LookAhead, Method::Optimal] {
            assert_eq!(divide(method).bytes, [60 * 64, 40 * 64], "{method:?}");
            assert_eq!(divide(method).misses, 600.0);
        }
    }

    #[test]
    fn no_division_has_fewer_misses_than_the_optimal_one() {
        let curves = [
            curve(&[(3, 100), (17, 80)]),
            curve(&[(9, 150)]),
            curve(&[(1, 30), (12, 90)]),
        ];
        let optimal = divide(&curves, 64, 30, Method::Optimal);
        for a in 0..=30u64 {
            for b in 0..=30 - a {
                let shares = [a, b, 30 - a - b];
                let each = curves.iter().zip(shares);
                let misses: f64 = each.map(|(curve, n)| curve.misses(n)).sum();
                assert!(optimal.misses <= misses, "{shares:?}");
            }
        }
        assert_eq!(optimal.bytes.iter().sum::<u64>(), 30 * 64);
    }

    #[test]
    fn unneeded_memory_is_given_out_in_turn() {
        let idle = [curve(&[]), curve(&[])];
        let division = divide(&idle, 64, 5, Method::LookAhead);
        assert_eq!(division.bytes.iter().sum::<u64>(), 320);
        assert!(divide(&[], 64, 5, Method::Greedy).bytes.is_empty());
    }
}
