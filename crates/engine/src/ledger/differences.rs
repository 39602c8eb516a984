//! How the database differs from the logs about an account, in words.

use std::collections::BTreeSet;

use selvedge_model::Money;
use selvedge_model::account::replay::History;
use selvedge_model::account::{Account, AccountStatus, Reservation, ReservationState};

/// All differences between an account with its reservations and its history by the logs; without `reservations` if they are of another
/// moment.
pub(super) fn differences(known: &Account, reservations: Option<&[Reservation]>, logged: &History) -> Vec<String> {
    let mut found: Vec<String> = other_parent(known, &logged.account).into_iter().collect();
    let ours = status(known.status);
    let theirs = status(logged.account.status);
    if ours != theirs {
        found.push(format!("the database says that it is {ours}, and the logs that it is {theirs}"));
    }
    let ours = figures(known);
    let theirs = figures(&logged.account);
    if ours != theirs {
        found.push(format!("the database says {ours}, and the logs {theirs}"));
    }
    found.extend(reservations.into_iter().flat_map(|known| other_reservations(known, logged)));
    found
}

/// The difference of the parents of an account.
pub(super) fn other_parent(known: &Account, logged: &Account) -> Option<String> {
    let shown = |account: &Account| match &account.parent {
        Some(parent) => format!("its money comes from `{parent}`"),
        None => "its money comes from no other account".to_owned(),
    };
    (known.parent != logged.parent)
        .then(|| format!("the database says that {}, and the logs that {}", shown(known), shown(logged)))
}

fn figures(account: &Account) -> String {
    let max = account.max.map_or_else(|| "no limit".to_owned(), |max| format!("{max} at most"));
    let children = match account.settled_children {
        Money::ZERO => String::new(),
        children => format!(" ({children} by children)"),
    };
    format!("{} spent{children}, {} reserved by {}, {max}", account.spent(), account.reserved, account.open)
}

fn other_reservations(known: &[Reservation], logged: &History) -> Vec<String> {
    let ours = |name: &str| known.iter().find(|held| held.id.as_str() == name);
    let names: BTreeSet<&str> = known.iter().chain(logged.reservations.values()).map(|held| held.id.as_str()).collect();
    let logged = |name: &str| logged.reservations.values().find(|held| held.id.as_str() == name);
    let one = |name: &str| match (ours(name), logged(name)) {
        (Some(_), None) => Some(format!("the database has reservation `{name}`, and the logs have not")),
        (None, Some(_)) => Some(format!("the database lacks reservation `{name}`")),
        (Some(ours), Some(theirs)) if ours != theirs => {
            let ours = reservation(ours);
            let theirs = reservation(theirs);
            Some(format!("the database says that reservation `{name}` is {ours}, and the logs {theirs}"))
        }
        _ => None,
    };
    names.into_iter().filter_map(one).collect()
}

fn reservation(held: &Reservation) -> String {
    let state = match held.state {
        ReservationState::Reserved => "not issued",
        ReservationState::Issued => "issued",
        ReservationState::Unknown => "settled as unknown",
    };
    let child = held.child.as_ref().map(|child| format!(" for `{child}`")).unwrap_or_default();
    format!("{} dollars{child}, {state}", held.amount)
}

fn status(status: AccountStatus) -> &'static str {
    match status {
        AccountStatus::Active => "active",
        AccountStatus::Closing => "closing",
        AccountStatus::Closed => "closed",
    }
}
