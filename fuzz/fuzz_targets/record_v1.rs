#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| isotherm_fuzz::read(isotherm_record::Format::RecordV1, bytes));
