//! What settings of optimizers have to be. The bounds are those of PyTorch's constructors.

/// Says which of these numbers is below 0 or NaN: learning rates, decays, the eps of a quotient.
pub(super) fn not_negative(numbers: &[(&str, f64)]) -> Option<String> {
    let (what, number) = numbers.iter().find(|(_, n)| n.is_nan() || *n < 0.0)?;
    Some(format!("{what} is {number}, expected at least 0"))
}

/// Says which of the two is not from 0 to below 1.
pub(super) fn betas((first, second): (f64, f64)) -> Option<String> {
    let ok = |beta: f64| (0.0..1.0).contains(&beta);
    (!ok(first) || !ok(second))
        .then(|| format!("betas are {first} and {second}, expected from 0 to below 1"))
}
