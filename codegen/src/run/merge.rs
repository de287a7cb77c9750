//! [`merge`]: bytes at several places made one, and written to several. What they are, and how they
//! are merged, the caller knows.

use super::memory::{Address, address_in, bytes, bytes_mut};
use smallvec::SmallVec;
use tracecast_runtime::{Error, Memory, Merging, Result};

/// Bytes of each place that are merged at once: they are in the nearest cache when the result is
/// copied.
const BLOCK: usize = 8 * 1024;

/// As [`Device::merge`](tracecast_runtime::Device::merge).
///
/// # Errors
/// If a place is not inside its memory of this device, if one that is written overlaps another one
/// in part, or if one that is merged is there twice and written as well. Nothing is written then.
pub(crate) fn merge(
    from: &[(&Memory, usize)],
    to: &[(&Memory, usize)],
    len: usize,
    with: &mut Merging<'_>,
) -> Result<()> {
    let addresses = |places: &[(&Memory, usize)]| -> Result<SmallVec<[Address; 8]>> {
        places.iter().map(|(memory, at)| address_in(memory, *at, len)).collect()
    };
    let (from, to) = (addresses(from)?, addresses(to)?);
    let in_part = |a: &Address, b: &Address| a != b && a.is_within(*b, len);
    if to.iter().any(|place| from.iter().chain(&to).any(|other| in_part(place, other))) {
        let message = "a place that the result of a merge goes to overlaps another one in part";
        return Err(Error::Device(message.to_owned()));
    }
    let (Some(first_from), Some(first_to)) = (from.first(), to.first()) else { return Ok(()) };
    // The result is made at one of the places that are read, if it goes there, and otherwise of a
    // copy of the first.
    let in_place = from.iter().position(|place| to.contains(place));
    let (number, own) = in_place.map_or((0, *first_to), |number| (number, from[number]));
    if from.iter().filter(|place| **place == own).count() > 1 {
        return Err(Error::Device("a place that is merged is written as well".to_owned()));
    }
    for first in (0..len).step_by(BLOCK) {
        let count = BLOCK.min(len - first);
        let block = |place: &Address| bytes(*place, first, count);
        let result = bytes_mut(own, first, count);
        if in_place.is_none() {
            result.copy_from_slice(block(first_from));
        }
        let before: SmallVec<[&[u8]; 8]> = from[..number].iter().map(block).collect();
        let after: SmallVec<[&[u8]; 8]> = from[number + 1..].iter().map(block).collect();
        with(&before, result, &after);
        for place in to.iter().filter(|place| **place != own) {
            bytes_mut(*place, first, count).copy_from_slice(result);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracecast_runtime::HostMemory;

    fn memory(bytes: &[u8]) -> Memory {
        let memory = HostMemory::new(bytes.len()).unwrap();
        memory.write(0, bytes).unwrap();
        Memory::new(memory)
    }

    fn read(memory: &Memory) -> Vec<u8> {
        let mut bytes = vec![0; memory.get::<HostMemory>().unwrap().len()];
        memory.get::<HostMemory>().unwrap().read(0, &mut bytes).unwrap();
        bytes
    }

    /// The digits of all places one after another, so that order shows.
    fn digits(before: &[&[u8]], own: &mut [u8], after: &[&[u8]]) {
        for (i, own) in own.iter_mut().enumerate() {
            let ranks = before.iter().map(|b| b[i]).chain([*own]).chain(after.iter().map(|b| b[i]));
            *own = ranks.fold(0, |all, digit| all * 6 + digit);
        }
    }

    #[test]
    fn places_are_merged_in_their_order_wherever_the_result_goes() {
        let len = 2 * BLOCK + 77;
        let ranks: Vec<Vec<u8>> = (0..3usize)
            .map(|r| (0..len + 9).map(|i| ((i * (r + 2) + r) % 6) as u8).collect())
            .collect();
        let wanted: Vec<u8> =
            (0..len).map(|i| ranks.iter().fold(0, |all, rank| all * 6 + rank[i + 4])).collect();
        // In the places of all, of some, and apart from them.
        for in_place in [[true; 3], [false, true, false], [false, false, true], [false; 3]] {
            let from: Vec<Memory> = ranks.iter().map(|rank| memory(rank)).collect();
            let apart: Vec<Memory> =
                ranks.iter().map(|rank| memory(&vec![7; rank.len()])).collect();
            let to: Vec<&Memory> =
                (0..3).map(|r| if in_place[r] { &from[r] } else { &apart[r] }).collect();
            let at = |memory| (memory, 4);
            let (from_at, to_at): (Vec<_>, Vec<_>) =
                (from.iter().map(at).collect(), to.iter().copied().map(at).collect());
            merge(&from_at, &to_at, len, &mut digits).unwrap();
            for (r, to) in to.iter().enumerate() {
                let found = read(to);
                assert_eq!(found[4..4 + len], wanted, "rank {r}, {in_place:?}");
                let outside = |all: &[u8]| [&all[..4], &all[4 + len..]].concat();
                let kept = if in_place[r] { outside(&ranks[r]) } else { vec![7; 9] };
                assert_eq!(outside(&found), kept, "rank {r}, {in_place:?}");
            }
        }
    }

    #[test]
    fn places_that_are_written_overlap_others_as_a_whole_or_not_at_all() {
        let (a, b) = (memory(&[1; 64]), memory(&[2; 64]));
        let merge = |from: [(&Memory, usize); 2], to: [(&Memory, usize); 2]| {
            merge(&from, &to, 16, &mut digits).map_err(|error| error.to_string())
        };
        // Results over operands, from both sides, and over each other.
        for to in
            [[(&a, 1), (&b, 40)], [(&b, 40), (&a, 15)], [(&b, 17), (&a, 16)], [(&a, 32), (&a, 40)]]
        {
            let error = merge([(&a, 0), (&b, 32)], to).unwrap_err();
            assert!(error.contains("overlaps another one in part"), "{error}");
        }
        assert_eq!((read(&a), read(&b)), (vec![1; 64], vec![2; 64]));
        // Side by side, the same twice, and operands that overlap each other alone.
        merge([(&a, 0), (&b, 32)], [(&a, 16), (&b, 16)]).unwrap();
        merge([(&a, 0), (&b, 32)], [(&a, 32), (&a, 32)]).unwrap();
        assert_eq!(read(&a), [[1; 16], [8; 16], [8; 16], [1; 16]].concat());
        merge([(&a, 8), (&a, 16)], [(&b, 0), (&b, 48)]).unwrap();
        let wanted = [[14; 8], [56; 8], [8; 8], [8; 8], [2; 8], [2; 8], [14; 8], [56; 8]].concat();
        assert_eq!(read(&b), wanted);
    }

    #[test]
    fn places_outside_or_read_twice_are_errors() {
        let (a, b) = (memory(&[1; 64]), memory(&[2; 64]));
        let beyond = merge(&[(&a, 1), (&b, 0)], &[(&a, 1)], 64, &mut digits).unwrap_err();
        assert!(beyond.to_string().contains("64 bytes at 1 is not inside"), "{beyond}");
        assert!(merge(&[(&a, 0), (&a, 0)], &[(&a, 0)], 64, &mut digits).is_err());
        assert!(merge(&[(&a, 0), (&Memory::new(1u8), 0)], &[(&a, 0)], 64, &mut digits).is_err());
        assert_eq!(read(&a), [1; 64]);
    }
}
