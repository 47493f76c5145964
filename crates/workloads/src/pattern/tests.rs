use super::*;

fn set(key: &str, value: &str) -> Vec<(String, String)> {
    vec![(key.to_owned(), value.to_owned())]
}

#[test]
fn parameters_replace_their_names_whatever_their_type() {
    let pattern = Pattern::load("stairs", &set("steps", "3")).unwrap();
    assert_eq!(pattern.area[0].count, 3);
    assert_eq!(pattern.phase[0].repeat, 3);
    let pattern = Pattern::load("stairs", &set("size", "4M")).unwrap();
    assert_eq!(pattern.area[0].size, Size(4 << 20));
}

#[test]
fn unknown_names_are_answered_with_the_known_ones() {
    let error = Pattern::load("stair", &[]).unwrap_err().to_string();
    assert!(error.contains("stairs, zigzag"), "{error}");
    let error = Pattern::load("stairs", &set("stepz", "3")).unwrap_err().to_string();
    assert!(error.contains("stepz") && error.contains("steps"), "{error}");
    let error = Pattern::load("/no/such.toml", &[]).unwrap_err().to_string();
    assert!(error.contains("/no/such.toml"), "{error}");
}

#[test]
fn mistakes_in_a_file_are_told() {
    for (text, part) in [
        ("name = ", "name"),
        ("name = \"x\"\nparams = 3\n", "params"),
        ("name = \"x\"\ncolour = 1\narea = []\nphase = []\n", "colour"),
        ("name = \"$x\"\narea = []\nphase = []\n", "$x"),
        ("name = \"x\"\nphase = []\n[[area]]\nname = \"a\"\nsize = \"big\"\n", "big"),
    ] {
        let error = Pattern::parse("t.toml", text, &[]).unwrap_err().to_string();
        assert!(error.contains("t.toml") && error.contains(part), "{error}");
    }
}
