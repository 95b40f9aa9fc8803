//! The Debian package of the agent that lies beside this build.
//!
//! What this host lacks a requirement for is skipped, with the reason.

mod beside;
mod debian;
mod in_root;
mod system;
mod under_systemd;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    let trial = |name: &'static str, missing: fn() -> Option<String>, test: fn()| {
        Trial::ignorable_test(name, move || {
            Ok(match missing() {
                Some(reason) => {
                    eprintln!("SKIPPED: {name}: {reason}");
                    Completion::ignored_with(reason)
                }
                None => {
                    test();
                    Completion::Completed
                }
            })
        })
    };
    let trials = vec![
        trial(
            "a_package_comes_and_goes",
            in_root::missing,
            in_root::a_package_comes_and_goes,
        ),
        trial(
            "a_package_lives_under_systemd",
            under_systemd::missing,
            under_systemd::a_package_lives_under_systemd,
        ),
        trial(
            "the_services_beside_the_agent_do_their_work",
            beside::missing,
            beside::the_services_beside_the_agent_do_their_work,
        ),
    ];
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
