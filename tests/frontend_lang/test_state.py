"""What a program's state holds: text, ids, messages, variables, select."""

from __future__ import annotations

import pytest

from espalier.frontend_lang import (
    ProgramState,
    assistant,
    assistant_begin,
    assistant_end,
    control,
    function,
    gen,
    select,
    system,
    unconditional_likelihood_normalized,
    user,
    user_begin,
    user_end,
)
from espalier.runtime.errors import InvalidRequest
from espalier.runtime.messages import FinishReason
from espalier.runtime.programs.backend import TextPiece
from espalier.runtime.programs.executor import Executor
from espalier.runtime.programs.values import GenInfo, SelectInfo
from tests.scripted_backend import EOS, Answer, ScriptedBackend, ScriptedCodec, answer, byte_ids

pytestmark = pytest.mark.timeout(20, method="thread")

CHAT = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello<|im_end|>\n"
)


def ids_of(*pieces: TextPiece) -> list[int]:
    return ScriptedCodec().encode_pieces(pieces)


def test_text_and_variables() -> None:
    backend = ScriptedBackend(lambda prompt, call: f"[{len(prompt)}]")

    @function
    def program(s: ProgramState, question: str) -> str:
        s += "Q: " + question + "\nA: " + gen("a")
        s += f" again {s['a']} " + gen("b")
        s["note"] = {"any": "object"}
        assert "a" in s and "note" in s and "c" not in s
        assert s["note"] == {"any": "object"}
        assert s.get_meta_info("note") is None
        return str(s["b"])

    with Executor(backend) as executor:
        run = program.run("why", backend=executor)
    assert run.text() == "Q: why\nA: [10] again [10] [26]"
    assert (run["a"], run["b"], run["note"]) == ("[10]", "[26]", {"any": "object"})
    assert run.return_value == "[26]"
    assert "b" in run and "c" not in run
    with pytest.raises(KeyError, match="no variable 'c'; it has: 'a', 'b', 'note'"):
        run["c"]


def test_the_last_assignment_in_program_order_wins() -> None:
    backend = ScriptedBackend(lambda prompt, call: prompt[-1:])

    @function
    def program(s: ProgramState) -> None:
        s += "1" + gen("x")
        s["x"] = "set"
        assert s["x"] == "set"
        s += "2" + gen("x")

    with Executor(backend) as executor:
        assert program.run(backend=executor)["x"] == "2"


@pytest.mark.parametrize("form", ["blocks", "calls", "expressions", "begin_end"])
def test_roles_in_every_form_give_the_same_text_ids_and_messages(form: str) -> None:
    backend = ScriptedBackend(lambda prompt, call: "Hello")

    @function
    def program(s: ProgramState) -> None:
        match form:
            case "blocks":
                with s.system():
                    s += "Be brief."
                with s.user():
                    s += "Hi"
                with s.assistant():
                    s += gen("x")
            case "calls":
                s.system("Be brief.")
                s.user("Hi")
                s.assistant(gen("x"))
            case "expressions":
                s += system("Be brief.") + user("Hi")
                s += assistant(gen("x"))
            case _:
                s += system("Be brief.")
                s += user_begin() + "Hi" + user_end()
                s += assistant_begin()
                s += gen("x")
                assert len(s.messages()) == 2
                s += assistant_end()

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run.text() == CHAT
    assert run.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    prompt = CHAT.removesuffix("Hello<|im_end|>\n")
    assert backend.prompts == [prompt]


def test_text_from_users_never_becomes_control_tokens_unless_asked() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s.user("<|im_end|>")
        s += "<|im_start|>" + control("<|im_start|>") + gen()

    with Executor(backend) as executor:
        program.run(backend=executor)
    ids = backend.calls[0].input_ids
    assert ids.count(EOS) == 1  # the user message's own end
    assert ids.count(ids_of(TextPiece("<|im_start|>", control=True))[0]) == 2
    assert backend.prompts[0].count("<|im_end|>") == 2


def test_neighbouring_constants_are_tokenised_together_across_statements() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "a"
        s += "b"
        s += "c" + gen("x") + "c"
        s += "d"
        s += gen("y")

    with Executor(backend) as executor:
        program.run(backend=executor)
    abc, cd = ids_of(TextPiece("abc")), ids_of(TextPiece("cd"))
    assert len(abc) == len(cd) == 1
    assert backend.calls[0].input_ids == abc
    assert backend.calls[1].input_ids == [*abc, *byte_ids("ok"), *cd]
    assert [len(pieces) for pieces in backend.codec.encoded] == [3, 2]


def test_generated_ids_stay_as_they_are_and_the_end_token_is_not_doubled() -> None:
    backend = ScriptedBackend(lambda prompt, call: "abc")

    @function
    def program(s: ProgramState) -> None:
        s.assistant(gen("x"))
        s.user(gen("y"))

    with Executor(backend) as executor:
        program.run(backend=executor)
    first, second = (call.input_ids for call in backend.calls)
    between = ids_of(TextPiece("<|im_end|>\n<|im_start|>user\n", control=True))
    assert second == [*first, *byte_ids("abc"), *between]


def test_a_stop_string_inside_a_token_leaves_the_whole_tokens_before_it() -> None:
    # The output "xy\nz" is x, y + newline in one token; the variable's text ends before "\n".
    def script(prompt: str, call: object) -> Answer:
        if prompt != "go":
            return answer("end")
        stop = FinishReason(kind="stop", matched="\n")
        return Answer(("xy",), finish=stop, ids=(ord("x"), ord("q")), num_kept=1)

    backend = ScriptedBackend(script)

    @function
    def program(s: ProgramState) -> None:
        s += "go" + gen("x", stop="\n") + "!" + gen("y")

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["x"] == "xy"
    assert run.text() == "goxy!end"
    assert backend.calls[1].input_ids == list(b"gox!")


def test_several_outputs_are_a_list_and_leave_the_state_alone() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "go" + gen("x", n=3, temperature=1) + gen("y")
        with pytest.raises(ValueError, match="not one text"):
            list(s.text_iter("x"))

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["x"] == ["ok", "ok", "ok"]
    info = run.get_meta_info("x")
    assert isinstance(info, list) and len(info) == 3
    assert backend.calls[1].input_ids == backend.calls[0].input_ids
    assert run.text() == "gook"
    assert run.usage().num_outputs == 4


def test_meta_info_and_usage() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "1234" + gen("x", return_logprob=True)
        s += gen("y")

    with Executor(backend) as executor:
        run = program.run(backend=executor)
        assert executor.usage.totals == run.usage()
    info = run.get_meta_info("x")
    assert isinstance(info, GenInfo) and info.logprobs is not None
    assert info.finish == FinishReason(kind="stop", matched=EOS)
    assert [entry.token_id for entry in info.logprobs] == list(b"ok")
    y = run.get_meta_info("y")
    assert isinstance(y, GenInfo) and y.logprobs is None
    usage = run.usage()
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (10, 5, 6)


def test_select_scores_token_lists_and_keeps_the_winner_s_ids() -> None:
    def score_of(prefix: str, continuation: str) -> float:
        return -0.1 if "no" in continuation else -2.0

    backend = ScriptedBackend(score_of=score_of)

    @function
    def program(s: ProgramState) -> None:
        s += "Is it? " + select("v", ["yes", "no"]) + "ab" + gen("x")

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["v"] == "no"
    info = run.get_meta_info("v")
    assert isinstance(info, SelectInfo)
    assert info.scores == (-2.0, -0.1)
    # " yes" is one token, so the blank before it belongs to what is scored, in both.
    [(prefix, continuations)] = backend.scored
    assert prefix == list(b"Is it?")
    assert continuations == [ids_of(TextPiece(" yes")), ids_of(TextPiece(" "), TextPiece("no"))]
    expected = ids_of(TextPiece("Is it? no")) + ids_of(TextPiece("ab"))
    assert backend.calls[0].input_ids == expected
    assert run.text() == "Is it? noabok"


def test_select_where_one_choice_begins_another() -> None:
    backend = ScriptedBackend()

    @function
    def program(s: ProgramState) -> None:
        s += "go" + gen("x") + select("v", ["ab", "abc", "abx"])

    with Executor(backend) as executor:
        program.run(backend=executor)
    [(prefix, continuations)] = backend.scored
    assert prefix == list(b"gook")
    assert continuations == [ids_of(TextPiece(text)) for text in ("ab", "abc", "abx")]


def test_unconditional_select_scores_the_choices_alone_too() -> None:
    def score_of(prefix: str, continuation: str) -> float:
        return {"": -9.0, "go": -1.0}[prefix] if continuation == "12" else -2.0

    backend = ScriptedBackend(score_of=score_of)

    @function
    def program(s: ProgramState) -> None:
        method = unconditional_likelihood_normalized
        s += "go" + gen("x", choices=["34", "12"], choices_method=method)

    with Executor(backend) as executor:
        run = program.run(backend=executor)
    assert run["x"] == "12"
    info = run.get_meta_info("x")
    assert isinstance(info, SelectInfo) and info.unconditional_logprobs is not None
    assert info.scores == (-1.0, 3.5)
    assert backend.scored[1] == ([], backend.scored[0][1])


def test_roles_do_not_nest_and_end_where_they_began() -> None:
    backend = ScriptedBackend()

    @function
    def nested(s: ProgramState) -> None:
        with s.user():
            s += assistant_begin()

    @function
    def crossed(s: ProgramState) -> None:
        s += assistant_begin() + user_end()

    @function
    def wrong_order(s: ProgramState) -> None:
        s += user("a") + system("b") + gen("x")

    with Executor(backend) as executor:
        with pytest.raises(InvalidRequest, match="'assistant' begins inside role 'user'"):
            nested.run(backend=executor)
        with pytest.raises(InvalidRequest, match="'user' ends, but the open one is 'assistant'"):
            crossed.run(backend=executor)
        with pytest.raises(InvalidRequest, match="system message comes first"):
            wrong_order.run(backend=executor)


def test_only_strings_and_expressions_are_appended() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += 5  # type: ignore[arg-type]

    with Executor(ScriptedBackend()) as executor, pytest.raises(TypeError, match="not 5"):
        program.run(backend=executor)


def test_a_program_inside_another_shares_its_state() -> None:
    backend = ScriptedBackend()

    @function
    def inner(s: ProgramState, text: str) -> int:
        s += text + gen("inner")
        return len(s["inner"])

    @function
    def outer(s: ProgramState) -> None:
        s += "a"
        assert inner(s, "b") == 2
        s += "c"

    with Executor(backend) as executor:
        run = outer.run(backend=executor)
    assert run.text() == "abokc"
    assert run["inner"] == "ok"
