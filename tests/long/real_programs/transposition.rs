//! Transposition of a matrix that no cache holds.

#[path = "random.rs"]
mod random;

const COLUMNS: usize = 2048;
const ROWS: usize = 2048;

#[inline(never)]
fn turn(input: &[u64], output: &mut [u64]) {
    transpose::transpose(input, output, COLUMNS, ROWS);
}

fn main() {
    let mut random = random::Random(7);
    let input: Vec<u64> = (0..COLUMNS * ROWS).map(|_| random.draw()).collect();
    let mut output = vec![0; COLUMNS * ROWS];
    for _ in 0..3 {
        turn(&input, &mut output);
    }
    println!("{}", output[ROWS + 1]);
}
