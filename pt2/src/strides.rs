//! Whether PyTorch's `reshape`, `flatten` and `contiguous` give a view, from the strides that the
//! file states.

use crate::program::{Extent, Meta};

/// Whether a result is a view of the first argument; `None` if sizes or strides depend on names.
pub(crate) fn is_view(op: &str, from: &Meta, to: &Meta) -> Option<bool> {
    let numbers = |extents: &[Extent]| -> Option<Vec<i64>> {
        let number = |extent: &Extent| match extent {
            Extent::Number(n) => Some(*n),
            Extent::Expression(..) => None,
        };
        extents.iter().map(number).collect()
    };
    let (sizes, strides, new) =
        (numbers(&from.sizes)?, numbers(&from.strides)?, numbers(&to.sizes)?);
    if op == "contiguous" {
        return Some(follows(&sizes, &strides, &sizes));
    }
    Some(follows(&sizes, &strides, &new))
}

/// Whether strides can see a tensor of these sizes and strides under other sizes. Axes that follow
/// each other in memory are one, and each of the new axes has to lie within one of those.
fn follows(sizes: &[i64], strides: &[i64], new: &[i64]) -> bool {
    if sizes.contains(&0) {
        return true;
    }
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for (size, stride) in sizes.iter().zip(strides).filter(|(size, _)| **size != 1) {
        match runs.last_mut() {
            Some((count, last)) if *last == size * stride => {
                (*count, *last) = (*count * size, *stride)
            }
            _ => runs.push((*size, *stride)),
        }
    }
    let mut new = new.iter().copied().filter(|size| *size != 1);
    runs.into_iter().all(|(count, _)| {
        let mut covered = 1;
        while covered < count {
            let Some(size) = new.next() else { return false };
            covered *= size;
        }
        covered == count
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_axes_are_split_and_joined() {
        assert!(follows(&[2, 3, 4], &[12, 4, 1], &[6, 4]));
        assert!(follows(&[2, 3, 4], &[12, 4, 1], &[2, 2, 6]));
        assert!(!follows(&[3, 2], &[1, 3], &[6]), "transposed");
        assert!(follows(&[3, 2], &[1, 3], &[3, 1, 2]));
        assert!(!follows(&[2, 3], &[6, 1], &[6]), "every other row");
    }
}
