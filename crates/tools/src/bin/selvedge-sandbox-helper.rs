//! The helper as a program of its own, for programs that embed Selvedge and don't want to be started again as one.

fn main() -> std::process::ExitCode {
    selvedge_tools::sandbox::helper::answer(std::env::args_os()).unwrap_or(std::process::ExitCode::from(2))
}
