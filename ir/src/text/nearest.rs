//! Which known names a mistyped one is close to.

/// `: did you mean …?` with up to three names, the closest first; empty if none is close.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let names = nearest(word, known);
    if names.is_empty() { String::new() } else { format!(": did you mean {}?", names.join(" or ")) }
}

/// Names longer than this are not compared: they are no typing errors, and comparing is quadratic
/// in the length.
const LONGEST: usize = 48;

fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Vec<String> {
    let letters: Vec<char> = word.chars().take(LONGEST + 1).collect();
    if letters.len() > LONGEST {
        return Vec::new();
    }
    let limit = (letters.len() / 3).min(3);
    let mut close: Vec<(usize, &str)> = known
        .filter(|name| name.len() <= LONGEST && !name.is_empty())
        .filter_map(|name| {
            let contains = letters.len() >= 3
                && (name.contains(word) || (name.len() >= 3 && word.contains(name)));
            // Each letter more or less is a step.
            let apart = name.chars().count().abs_diff(letters.len());
            let distance = (contains || apart <= limit).then(|| distance(&letters, name))?;
            (distance <= limit || contains).then_some((distance, name))
        })
        .collect();
    close.sort_unstable();
    close.dedup();
    close.truncate(3);
    close.into_iter().map(|(_, name)| format!("`{name}`")).collect()
}

/// How many letters to insert, remove, replace or swap with their neighbour.
fn distance(a: &[char], b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut rows =
        [vec![0; b.len() + 1], (0..=b.len()).collect::<Vec<usize>>(), vec![0; b.len() + 1]];
    for (i, x) in a.iter().enumerate() {
        let [before, last, row] = &mut rows;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && a[i - 1] == *y && *x == b[j - 1] {
                best = best.min(before[j - 1] + 1);
            }
            row[j + 1] = best;
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_found() {
        let known = ["matmul", "mul", "mean", "layer_norm", "relu"];
        assert_eq!(did_you_mean("matmull", known.into_iter()), ": did you mean `matmul` or `mul`?");
        assert_eq!(did_you_mean("rleu", known.into_iter()), ": did you mean `relu`?");
        assert_eq!(did_you_mean("norm", known.into_iter()), ": did you mean `layer_norm`?");
        assert_eq!(did_you_mean("quantize", known.into_iter()), "");
        assert_eq!(did_you_mean("%y", ["%x"].into_iter()), "");
        assert_eq!(did_you_mean(&"x".repeat(1000), known.into_iter()), "");
    }

    #[test]
    fn distances() {
        let distance = |a: &str, b| distance(&a.chars().collect::<Vec<_>>(), b);
        assert_eq!(
            (
                distance("abc", "abc"),
                distance("", "abc"),
                distance("acb", "abc"),
                distance("kitten", "sitting")
            ),
            (0, 3, 1, 3)
        );
    }
}
