#![no_main]

use isotherm_schemes::{Format, explain, parse, write};

libfuzzer_sys::fuzz_target!(|text: &str| {
    for format in [None, Some(Format::Toml), Some(Format::Text), Some(Format::Damo)] {
        let Ok(file) = parse(text, format) else { continue };
        file.entries.iter().for_each(|entry| drop(explain(entry)));
        for to in Format::ALL {
            std::hint::black_box(write(&file.entries, to));
        }
        // What is written in Isotherm's own format is read again; and if it was read from it, it says the same.
        let again = parse(&write(&file.entries, Format::Toml).0, Some(Format::Toml)).expect("it was written");
        let same = file.format != Format::Toml
            || again.entries.iter().zip(&file.entries).all(|(a, b)| a.scheme == b.scheme);
        assert!(same);
    }
});
