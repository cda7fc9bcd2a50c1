//! What must not compile: a handle used after its release, and a request that skips a state. Each file of `compile_fail/` is
//! one such mistake; beside it stands what the compiler says. Where a newer compiler words it otherwise, look whether it is
//! still the same mistake and run the test with `TRYBUILD=overwrite`.

#[test]
fn misuse_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
