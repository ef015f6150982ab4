"""`jetstream acl …`: the rules that give principals their rights."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.exits import Exit, UsageError
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json
from jetstream_client.values.access import AclRule
from jetstream_client.values.checks import NUMBER_MAX

app = options.group("acl")

_OPERATIONS = (
    "all, create, describe, alter, delete, purge, read, write, commit; of the cluster: all, "
    "cluster_describe, cluster_alter, security_alter"
)
Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="user:NAME, or '*' for every principal.")
]
Stream = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="Names of streams; * stands for any characters."),
]
Subject = Annotated[
    str | None,
    typer.Option(metavar="PATTERN", help="NATS pattern that covers the stream's subject."),
]
Cursor = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Names of cursors and consumer groups, to which `commit` is limited.",
    ),
]
Cluster = Annotated[
    bool, typer.Option("--cluster", help="The rule is for the cluster, not for streams.")
]


@app.command()
@common_options()
def add(
    cli: Invocation,
    principal: Principal,
    allow: Annotated[
        str | None, typer.Option(metavar="OPERATION,…", help=f"What to allow: {_OPERATIONS}.")
    ] = None,
    deny: Annotated[
        str | None, typer.Option(metavar="OPERATION,…", help="What to deny; a deny rule wins.")
    ] = None,
    stream: Stream = None,
    subject: Subject = None,
    cursor: Cursor = None,
    cluster: Cluster = False,
) -> None:
    """Add a rule.

    Examples:

      jetstream acl add user:jo --allow read --stream '*' --subject 'orders.>'

      jetstream acl add user:jo --allow commit --stream orders --cursor 'jo-*'

      jetstream acl add user:ops --allow all --cluster

      jetstream acl add '*' --deny delete,purge --stream '*'
    """
    if (allow is None) is (deny is None):
        raise UsageError("use either --allow or --deny")
    if cluster is not (stream is None and subject is None and cursor is None):
        raise UsageError("name the streams by --stream or --subject or both; or use --cluster")
    operations: Any = [each.strip() for each in (allow or deny or "").split(",")]
    with cli.client() as client:
        rule = client.add_acl(
            principal,
            operations,
            allow=allow is not None,
            stream=stream,
            subject=subject,
            cursor=cursor,
        )
    cli.answer(dataclasses.asdict(rule), f"rule {rule.id}: {_text(rule)}")


@app.command("list")
@common_options()
def list_rules(
    cli: Invocation,
    principal: Annotated[
        str | None,
        typer.Option(metavar="PRINCIPAL", help="Only the rules that hold for this principal."),
    ] = None,
) -> None:
    """List the rules. What no rule allows is denied; a deny rule wins over an allow rule.

    Example: jetstream acl list --principal user:reports
    """
    with cli.client() as client:
        rules = client.list_acls(principal)
    columns = ("ID", "PRINCIPAL", "RULE", "OPERATIONS", "STREAM", "SUBJECT", "CURSOR")
    cli.table(columns, rules, _cells, dataclasses.asdict, "no rules")


@app.command()
@common_options(total=False)
def remove(
    cli: Invocation,
    rule: Annotated[
        int, typer.Argument(metavar="ID", min=1, max=NUMBER_MAX, help="The rule's id.")
    ],
    yes: options.Yes = False,
) -> None:
    """Remove a rule. It shows the rule and asks first.

    Example: jetstream acl remove 14 --yes
    """
    with cli.client() as client:
        if not yes:
            options.confirm(_question(rule, client.list_acls()), "not removed", yes=yes)
        client.remove_acl(rule)
    cli.answer({"id": rule, "removed": True}, f"rule {rule} is removed")


@app.command("test")
@common_options()
def say_decision(
    cli: Invocation,
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help=f"{_OPERATIONS}.")],
    stream: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The stream. Default: the operation is on the cluster."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="The stream's subject, if the stream does not exist yet."
        ),
    ] = None,
    cursor: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The cursor or consumer group that `commit` is about."),
    ] = None,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="The principal. Default: the caller.")
    ] = None,
) -> int:
    """Say whether an operation would be allowed, and by which rule. Exit code 1: it is denied.

    While security is off, it says what the rules would decide.

    Example: jetstream acl test read --stream orders --principal user:reports
    """
    asked: Any = operation
    with cli.client() as client:
        found = client.test_acl(
            asked, stream=stream, subject=subject, principal=principal, cursor=cursor
        )
    if cli.json:
        emit_json(dataclasses.asdict(found))
    else:
        why = "no rule allows it" if found.rule is None else f"rule {found.rule.id}: "
        decision = "allowed" if found.allowed else "denied"
        print(f"{decision}, {why}{_text(found.rule)}")
        if not found.enforced:
            print(f"security is off: nothing is checked now; with it on, this would be {decision}")
    return Exit.OK if found.allowed else Exit.FAILED


def _question(rule_id: int, rules: list[AclRule]) -> str:
    """Of `remove`. Warns if no principal could change rules any more."""
    found = next((rule for rule in rules if rule.id == rule_id), None)
    question = f"Remove rule {rule_id}{f' ({_text(found)})' if found else ''}?"
    administrators = [rule for rule in rules if _lets_change_rules(rule)]
    if found is not None and administrators == [found]:
        question = f"No other rule lets anybody change rules and tokens. {question}"
    return question


def _lets_change_rules(rule: AclRule) -> bool:
    return (
        rule.allow and not rule.stream and not {"all", "security_alter"}.isdisjoint(rule.operations)
    )


def _text(rule: AclRule | None) -> str:
    if rule is None:
        return ""
    where = f"streams {rule.stream} on {rule.subject}" if rule.stream else "the cluster"
    where += f", cursors {rule.cursor}" if rule.cursor else ""
    return f"{rule.principal}, {_effect(rule)} {', '.join(rule.operations)} on {where}"


def _effect(rule: AclRule) -> str:
    return "allow" if rule.allow else "deny"


def _cells(rule: AclRule) -> tuple[object, ...]:
    operations = ",".join(rule.operations)
    stream, subject = (rule.stream, rule.subject) if rule.stream else ("(cluster)", "-")
    has_cursors = rule.stream and not {"all", "commit"}.isdisjoint(rule.operations)
    cursor = (rule.cursor or "*") if has_cursors else "-"
    return rule.id, rule.principal, _effect(rule), operations, stream, subject, cursor
