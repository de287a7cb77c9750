//! Machine code as text: instructions of x86-64 by name, of other machines their bytes.

use std::fmt::{self, Write};

use iced_x86::{Decoder, DecoderOptions, FastFormatter, Instruction};
use tracecast_runtime::MachineCode;

/// The bytes of a line of data.
const LINE: usize = 16;

/// A function as it is printed: the offset of each instruction, and the names of the addresses that it takes.
///
/// ```text
/// ; wide loop 0 of function 0, 412 bytes
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
}
