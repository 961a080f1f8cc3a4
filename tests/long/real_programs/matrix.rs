//! Product of two matrices of 64-bit floats.

use rusty_machine::linalg::matrix::Matrix;

#[path = "random.rs"]
mod random;

#[inline(never)]
fn multiply(a: &Matrix<f64>, b: &Matrix<f64>) -> Matrix<f64> {
    a * b
}

fn main() {
    let mut random = random::Random(7);
    let mut matrix = |rows: usize, columns: usize| {
        let data = (0..rows * columns).map(|_| random.below(1000) as f64);
        Matrix::new(rows, columns, data.collect::<Vec<f64>>())
    };
    let (a, b) = (matrix(120, 700), matrix(700, 700));
    let product = multiply(&a, &b);
    println!("{}", product[[119, 699]]);
}
