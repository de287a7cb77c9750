//! Names of devices in texts: `device npu = privateuse1` at the head of a file, and the types that
//! they have where it is read.

use super::cursor::Cursor;
use super::lexer::Kind;
use super::options::{DeviceKind, ParseOptions};
use crate::ParseError;
use crate::policy::{DeviceType, PolicyError, Site};
use std::borrow::Cow;

/// What a file calls its devices.
#[derive(Default)]
pub(super) struct Devices(Vec<Device>);

struct Device {
    name: String,
    /// The type that it had where the text was written.
    written: DeviceType,
    /// The type that it has here.
    here: DeviceType,
}

impl Devices {
    /// Reads `device npu = privateuse1`.
    pub(super) fn declaration(
        &mut self,
        cursor: &mut Cursor<'_>,
        options: &ParseOptions,
    ) -> Result<(), ParseError> {
        cursor.take();
        let name_at = cursor.take_kind(Kind::Word, "the name of a device")?;
        cursor.expect('=', "and a device type")?;
        let type_at = cursor.take_kind(Kind::Word, "a device type")?;
        let written: Result<DeviceType, PolicyError> = type_at.text.parse();
        let written = written.map_err(|error| cursor.fail(type_at, error.to_string()))?;
        let name = name_at.text;
        if !written.is_outside() || name.parse::<DeviceType>().is_ok() {
            let message = "only types from outside are given names, and none is that of a type";
            return Err(cursor.fail(type_at, message));
        }
        if self.0.iter().any(|known| known.name == name || known.written == written) {
            return Err(cursor.fail(name_at, "this device is there already"));
        }
        let known = |found: &&DeviceKind| found.name == name;
        let other = |found: &&DeviceKind| found.device_type == written;
        let here = match (options.devices.iter().find(known), options.devices.iter().find(other)) {
            (Some(here), _) => here.device_type,
            (None, Some(DeviceKind { name: other, .. })) => {
                let message = format!("no device `{name}` here, where {written} is `{other}`");
                return Err(cursor.fail(name_at, message));
            }
            (None, None) => written,
        };
        self.0.push(Device { name: name.to_owned(), written, here });
        Ok(())
    }

    /// The device type that a word stands for.
    pub(super) fn device_type(
        &self,
        word: &str,
        options: &ParseOptions,
    ) -> Result<DeviceType, PolicyError> {
        if let Some(device) = self.0.iter().find(|device| device.name == word) {
            return Ok(device.here);
        }
        match word.parse::<DeviceType>() {
            Ok(written) => {
                let known = self.0.iter().find(|device| device.written == written);
                Ok(known.map_or(written, |device| device.here))
            }
            Err(error) => {
                let known = options.devices.iter().find(|known| known.name == word);
                known.map(|known| known.device_type).ok_or(error)
            }
        }
    }

    /// The text of a region with types in the place of names.
    pub(super) fn in_types<'t>(&self, region: &'t str, options: &ParseOptions) -> Cow<'t, str> {
        if self.0.is_empty() && options.devices.is_empty() {
            return region.into();
        }
        let (mut text, mut rest) = (String::with_capacity(region.len()), region);
        while let Some(at) = rest.find(is_of_word) {
            let len = rest[at..].find(|c| !is_of_word(c)).unwrap_or(rest.len() - at);
            let (word, behind) = (&rest[at..at + len], &rest[at + len..]);
            text.push_str(&rest[..at]);
            match self.device_type(word, options) {
                Ok(here) if behind.trim_start().starts_with(':') => text.push_str(here.name()),
                _ => text.push_str(word),
            }
            rest = behind;
        }
        text.push_str(rest);
        text.into()
    }
}

/// An error if nobody has the device, as far as that is known.
pub(super) fn check(site: Site, options: &ParseOptions) -> Result<(), String> {
    let kind = options.devices.iter().find(|kind| kind.device_type == site.kind);
    let Some(DeviceKind { name, ordinals: Some(ordinals), .. }) = kind else { return Ok(()) };
    if ordinals.contains(&site.ordinal) {
        return Ok(());
    }
    let known: Vec<String> = ordinals.iter().map(|ordinal| format!("{name}:{ordinal}")).collect();
    let known = if known.is_empty() { "there is none".to_owned() } else { known.join(", ") };
    Err(format!("no device `{name}:{}`: {known}", site.ordinal))
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Printer, parse_with};
    use DeviceType::{PrivateUse1, PrivateUse2};

    const TEXT: &str = "device npu = privateuse1\nregion #1 = {npu: bf16} cache on scope 1\n\
        graph @g(%x: f32[2, 2] on npu, %y: f32[2] on privateuse1) {\n  return x = %x, y = %y\n}\n";

    fn options(devices: &[(&str, DeviceType)]) -> ParseOptions {
        let kind = |(name, device_type): &(&str, DeviceType)| DeviceKind {
            name: (*name).to_owned(),
            device_type: *device_type,
            ordinals: Some(vec![0, 1]),
        };
        let devices = devices.iter().map(kind).collect();
        ParseOptions { devices, ..ParseOptions::default() }
    }

    #[test]
    fn names_are_types_of_here() {
        for (devices, expected) in [
            (&[][..], PrivateUse1),
            (&[("npu", PrivateUse1)], PrivateUse1),
            (&[("tpu", PrivateUse1), ("npu", PrivateUse2)], PrivateUse2),
        ] {
            let graph = parse_with(TEXT, &options(devices)).unwrap();
            assert!(graph.ports().iter().all(|port| port.device == expected.into()), "{graph}");
            assert!(graph.regions().iter().any(|region| region.is_enabled(expected)));
            // What is printed has types and reads again.
            assert!(parse_with(&graph.to_string(), &ParseOptions::default()).is_ok());
        }
        let named = "graph @g(%x: f32[2] on npu) { return x = %x }";
        let graph = parse_with(named, &options(&[("npu", PrivateUse2)])).unwrap();
        assert_eq!(graph.ports()[0].device, PrivateUse2.into());
        let at_home = ParseOptions { device: PrivateUse2.into(), ..ParseOptions::default() };
        let graph = parse_with("graph @g(%x: f32[2]) { return x = %x }", &at_home).unwrap();
        assert_eq!(graph.ports()[0].device, PrivateUse2.into());
    }

    #[test]
    fn names_and_numbers_are_written_as_they_are_read() {
        let text = "device npu = privateuse1\ngraph @g(%x: f32[2] on npu:1, %y: f32[2] on cuda:3) { return x = %x, y = %y }";
        let here = options(&[("tpu", PrivateUse1), ("npu", PrivateUse2)]);
        let graph = parse_with(text, &here).unwrap();
        assert_eq!(graph.ports()[0].device, Site { kind: PrivateUse2, ordinal: 1 });
        let named = Printer::FULL.show_with(&graph, &here.devices).to_string();
        assert!(named.contains("device npu = privateuse2\n") && !named.contains("tpu"), "{named}");
        assert!(named.contains("%x: f32[2] on npu:1, %y: f32[2] on cuda:3"), "{named}");
        // Where the type is another one the text means the same device.
        let there = options(&[("npu", PrivateUse1)]);
        let moved = parse_with(&named, &there).unwrap();
        assert_eq!(moved.ports()[0].device, Site { kind: PrivateUse1, ordinal: 1 });
        assert_eq!(parse_with(&graph.to_string(), &here).unwrap().to_string(), graph.to_string());
        let printed =
            Printer::FULL.show_with(&parse_with(TEXT, &there).unwrap(), &there.devices).to_string();
        assert!(printed.contains("region #1 = {npu: bf16} cache on scope 1\n"), "{printed}");
    }

    #[test]
    fn what_a_name_cannot_be_is_an_error_at_its_place() {
        let error = |text: &str, devices: &[(&str, DeviceType)]| {
            let error = parse_with(text, &options(devices)).unwrap_err();
            (error.line, error.column, error.message)
        };
        let (line, _, says) = error(TEXT, &[("tpu", PrivateUse1)]);
        assert!(line == 1 && says.contains("privateuse1 is `tpu`"), "{says}");
        for (text, says) in [
            ("device npu = cuda\n", "only types from outside"),
            ("device cuda = privateuse1\n", "only types from outside"),
            ("device npu = tpu\n", "unknown device type"),
            ("device npu privateuse1\n", "`=`"),
            ("device = privateuse1\n", "the name of a device"),
            ("device npu = privateuse1\ndevice npu = privateuse2\n", "there already"),
            ("device npu = privateuse1\ndevice tpu = privateuse1\n", "there already"),
        ] {
            let (_, _, message) = error(text, &[]);
            assert!(message.contains(says), "{text}: {message}");
        }
        let two = "graph @g(%x: f32[2] on npu:2) { return x = %x }";
        let (line, column, says) = error(two, &[("npu", PrivateUse1)]);
        assert_eq!((line, column), (1, 28));
        assert_eq!(says, "no device `npu:2`: npu:0, npu:1");
        let (line, column, _) = error("graph @g(%x: f32[2] on npu) { return x = %x }", &[]);
        assert_eq!((line, column), (1, 24));
    }
}
