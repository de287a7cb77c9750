//! A compiled kernel as bytes: a mark, the key, the functions, and a checksum of all before it.
//! Numbers are little-endian.

use crate::checksum::checksum;
use crate::code::object::{Name, Object, Relocation};
use cranelift::codegen::binemit::Reloc;
use cranelift::codegen::ir::LibCall;
use std::str::FromStr;

/// The first bytes of every file; the number is that of the format.
const MARK: &[u8] = b"tracecast code 1\n";

/// The file of a kernel; `None` if it has code of a kind that files cannot hold.
pub(super) fn encode(key: &[u8], functions: &[Object]) -> Option<Vec<u8>> {
    let mut to = MARK.to_vec();
    put(&mut to, key);
    number(&mut to, functions.len() as u64);
    for function in functions {
        number(&mut to, function.align);
        number(&mut to, function.scratch);
        put(&mut to, &function.bytes);
        number(&mut to, function.loops.len() as u64);
        function.loops.iter().for_each(|l| put(&mut to, l));
        number(&mut to, function.relocations.len() as u64);
        for Relocation { offset, kind, name, addend } in &function.relocations {
            number(&mut to, u64::from(*offset));
            number(&mut to, u64::from(kind_number(*kind)?));
            number(&mut to, *addend as u64);
            match name {
                Name::Routine(routine) => put_tagged(&mut to, 0, routine.symbol().as_bytes()),
                Name::Loop(i) => put_tagged(&mut to, 1, &i.to_le_bytes()),
                Name::Library(call) => put_tagged(&mut to, 2, call.to_string().as_bytes()),
                Name::Within(at) => put_tagged(&mut to, 3, &at.to_le_bytes()),
            }
        }
    }
    let sum = checksum(&to);
    to.extend(sum.to_le_bytes());
    Some(to)
}

/// The functions in a file.
///
/// # Errors
/// What is wrong with it.
pub(super) fn decode(bytes: &[u8], key: &[u8]) -> Result<Vec<Object>, String> {
    let Some(mut from) = bytes.strip_prefix(MARK) else {
        return Err("it is not of this format".to_owned());
    };
    let Some((_, sum)) = from.split_last_chunk::<16>() else {
        return Err("it is cut off".to_owned());
    };
    if checksum(&bytes[..bytes.len() - 16]) != u128::from_le_bytes(*sum) {
        return Err("its checksum is wrong".to_owned());
    }
    from = &from[..from.len() - 16];
    let mut from = Reader(from);
    let read = (|| {
        if from.block()? != key {
            return Some(Err("it is that of another kernel, machine or version".to_owned()));
        }
        let functions = from.list(Reader::object)?;
        from.0.is_empty().then_some(Ok(functions))
    })();
    read.unwrap_or_else(|| Err("it does not make sense".to_owned()))
}

fn number(to: &mut Vec<u8>, n: u64) {
    to.extend(n.to_le_bytes());
}

fn put(to: &mut Vec<u8>, block: &[u8]) {
    number(to, block.len() as u64);
    to.extend(block);
}

fn put_tagged(to: &mut Vec<u8>, tag: u8, block: &[u8]) {
    to.push(tag);
    put(to, block);
}

/// The ways of writing an address that files know: eight bytes, the only one in code whose calls
/// may go anywhere.
const KINDS: [Reloc; 1] = [Reloc::Abs8];

fn kind_number(kind: Reloc) -> Option<u8> {
    KINDS.iter().position(|k| *k == kind).map(|i| i as u8)
}

/// What is left of a file.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*first))
    }

    fn block(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (block, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(block)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.number()?;
        (0..count).map(|_| one(self)).collect()
    }

    fn object(&mut self) -> Option<Object> {
        let (align, scratch) = (self.number()?, self.number()?);
        let bytes = self.block()?.to_vec();
        let loops = self.list(|from| from.block().map(<[u8]>::to_vec))?;
        let relocations = self.list(Reader::relocation)?;
        let fits = |relocation: &Relocation| relocation.offset as usize + 8 <= bytes.len();
        (align.is_power_of_two() && relocations.iter().all(fits)).then_some(Object {
            bytes,
            align,
            relocations,
            loops,
            scratch,
        })
    }

    fn relocation(&mut self) -> Option<Relocation> {
        let offset = u32::try_from(self.number()?).ok()?;
        let kind = *KINDS.get(usize::try_from(self.number()?).ok()?)?;
        let addend = self.number()? as i64;
        let (tag, rest) = self.0.split_first()?;
        self.0 = rest;
        let block = self.block()?;
        let index = || block.try_into().ok().map(u32::from_le_bytes);
        let text = || str::from_utf8(block).ok();
        let name = match tag {
            0 => Name::Routine(text()?.parse().ok()?),
            1 => Name::Loop(index()?),
            2 => Name::Library(LibCall::from_str(text()?).ok()?),
            3 => Name::Within(index()?),
            _ => return None,
        };
        Some(Relocation { offset, kind, name, addend })
    }
}
