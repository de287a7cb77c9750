//! Machine code as text: instructions of x86-64 by name, of other machines their bytes; or the
//! bytes alone, to be compared.

use std::fmt::{self, Write};

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction};
use tracecast_runtime::MachineCode;

/// The bytes of a line of data.
const LINE: usize = 16;

/// A function as it is printed: the offset of each instruction, and the names of the addresses that
/// it takes.
///
/// ```text
/// ; vector loop 0 of function 0, 412 bytes
///      0  push rbp
///      1  vmovups ymm0,ymmword ptr [rdi+rax*4]
/// ```
pub(crate) struct Listing<'c>(pub(crate) &'c MachineCode);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MachineCode { name, bytes, instructions, .. } = self.0;
        writeln!(f, "; {name}, {} bytes", bytes.len())?;
        let end = instructions.unwrap_or(bytes.len()).min(bytes.len());
        let (code, constants) = bytes.split_at(end);
        if cfg!(target_arch = "x86_64") {
            self.instructions(f, code)?
        } else {
            data(f, code, 0)?
        }
        data(f, constants, end)
    }
}

impl Listing<'_> {
    fn instructions(&self, f: &mut fmt::Formatter<'_>, code: &[u8]) -> fmt::Result {
        let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
        let mut formatter = FastFormatter::new();
        let (mut instruction, mut text) = (Instruction::default(), String::new());
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            text.clear();
            formatter.format(&instruction, &mut text);
            write!(f, "{:6x}  {text}", instruction.ip())?;
            let within = instruction.ip() as usize..instruction.next_ip() as usize;
            for (_, name) in self.0.addresses.iter().filter(|(at, _)| within.contains(at)) {
                write!(f, "  ; {name}")?;
            }
            f.write_char('\n')?;
        }
        Ok(())
    }
}

/// Bytes that are no instructions.
fn data(f: &mut fmt::Formatter<'_>, bytes: &[u8], start: usize) -> fmt::Result {
    for (line, bytes) in bytes.chunks(LINE).enumerate() {
        write!(f, "{:6x}  .byte", start + line * LINE)?;
        for byte in bytes {
            write!(f, " {byte:02x}")?;
        }
        f.write_char('\n')?;
    }
    Ok(())
}

/// The functions of a kernel as bytes. Nothing that is printed is a name, so text from two versions
/// of the compiler differs only where their code does. What an address belongs to is a number:
/// equal numbers within a kernel are equal names.
///
/// ```text
/// function of 31 bytes, 31 of them instructions
/// 554889e5…
/// address 0 at 12
/// ```
pub(crate) struct RawBytes<'c>(pub(crate) &'c [MachineCode]);

impl fmt::Display for RawBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut called: Vec<&str> = Vec::new();
        for MachineCode { bytes, instructions, addresses, .. } in self.0 {
            let instructions = instructions.unwrap_or(bytes.len());
            writeln!(f, "function of {} bytes, {instructions} of them instructions", bytes.len())?;
            for line in bytes.chunks(2 * LINE) {
                line.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                f.write_char('\n')?;
            }
            for (at, name) in addresses {
                let number = called.iter().position(|known| known == name);
                let number = number.unwrap_or_else(|| {
                    called.push(name);
                    called.len() - 1
                });
                writeln!(f, "address {number} at {at}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn instructions_constants_and_addresses_are_told_apart() {
        // mov rax, imm64; vaddps zmm0, zmm1, zmm2; ret; and four bytes of a constant.
        let mut bytes = vec![0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend([0x62, 0xf1, 0x74, 0x48, 0x58, 0xc2, 0xc3, 0, 0, 0x80, 0x3f]);
        let addresses = vec![(2, "@exp".to_owned())];
        let code = MachineCode { name: "f".to_owned(), bytes, instructions: Some(17), addresses };
        let text = Listing(&code).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "; f, 21 bytes");
        assert!(
            lines[1].starts_with("     0  mov rax,") && lines[1].ends_with("  ; @exp"),
            "{text}"
        );
        assert_eq!(lines[2], "     a  vaddps zmm0,zmm1,zmm2");
        assert_eq!(lines[3..], ["    10  ret", "    11  .byte 00 00 80 3f"]);
    }
    #[test]
    fn bytes_have_no_names() {
        let addresses = |names: [&str; 3]| {
            let places = [1, 9, 17].into_iter();
            places.zip(names.map(str::to_owned)).collect::<Vec<_>>()
        };
        let code = |names| MachineCode {
            name: "f".to_owned(),
            bytes: vec![0xc3, 0x0f],
            instructions: Some(1),
            addresses: addresses(names),
        };
        let text = RawBytes(&[code(["@exp", "@tanh", "@exp"])]).to_string();
        let expected = "function of 2 bytes, 1 of them instructions\nc30f\n\
            address 0 at 1\naddress 1 at 9\naddress 0 at 17\n";
        assert_eq!(text, expected);
        assert_eq!(text, RawBytes(&[code(["a", "b", "a"])]).to_string());
        assert_ne!(text, RawBytes(&[code(["a", "b", "b"])]).to_string());
    }
}
