//! The matrix product of the `gemm` crate, for benches that compare with it (feature `versus`).

use gemm_common::Parallelism;

/// Multiplies an m by k matrix with a k by n one on one thread; the result is row-major. Operands
/// are row-major, or column-major if `transposed`.
///
/// # Panics
/// If a slice has another length than its matrix.
pub fn gemm_f32(
    [m, n, k]: [usize; 3],
    (a, b): (&[f32], &[f32]),
    transposed: [bool; 2],
    c: &mut [f32],
) {
    assert_eq!((a.len(), b.len(), c.len()), (m * k, k * n, m * n), "the sizes of the matrices");
    let strides = |transposed, rows: usize, cols: usize| {
        if transposed { [1, rows as isize] } else { [cols as isize, 1] }
    };
    let [a_row, a_col] = strides(transposed[0], m, k);
    let [b_row, b_col] = strides(transposed[1], k, n);
    let product = gemm_f32::gemm::f32::get_gemm_fn();
    // SAFETY: the slices hold what sizes and strides span; `c` overlaps neither of the others.
    unsafe {
        product(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            false,
            a.as_ptr(),
            a_col,
            a_row,
            b.as_ptr(),
            b_col,
            b_row,
            0.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        )
    }
}
