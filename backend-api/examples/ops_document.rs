//! Prints `docs/ops.md`; called by `cargo xtask header`.

fn main() {
    print!("{}", tokenspeed_backend_api::catalogue::document());
}
