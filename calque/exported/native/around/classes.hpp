/* NAME for C++17: an instance as a class, errors as exceptions, numbers as spans. Written by `calque build`; NAME.h says what everything means. */
#ifndef @GUARD@
#define @GUARD@
#include "NAME.h"
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#ifndef CALQUE_CLASSES
#define CALQUE_CLASSES
namespace calque {

/* What went wrong, with the code of the C functions. */
class error : public std::runtime_error {
public:
    error(std::int32_t number, const std::string &text) : std::runtime_error(text), code(number) {}
    const std::int32_t code;
};

/* Numbers one behind the other that somebody else holds: of a vector, an array, a std::span, or a pointer and a count. */
template <class T> class span {
public:
    span() = default;
    span(T *data, std::size_t size) : data_(data), size_(size) {}
    template <class C, class P = decltype(std::data(std::declval<C &>())), class = std::enable_if_t<std::is_convertible_v<P, T *>>>
    span(C &&values) : data_(std::data(values)), size_(std::size(values)) {}
    T *data() const { return data_; }
    std::size_t size() const { return size_; }
    T *begin() const { return data_; }
    T *end() const { return data_ + size_; }
    T &operator[](std::size_t k) const { return data_[k]; }

private:
    T *data_ = nullptr;
    std::size_t size_ = 0;
};

template <class T> constexpr std::int32_t dtype_of();
@TYPES@
inline std::size_t count_of(const calque_spec &spec) {
    std::size_t found = 1;
    for (std::int32_t k = 0; k < spec.ndim; k++) found *= static_cast<std::size_t>(spec.shape[k]);
    return found;
}

}
#endif

/* An instance. One thread uses it at a time; it can be moved, not copied. */
class NAME_model {
public:
    /* weights: what is in the weights file, which must stay where it is (nothing if the weights are in the library). threads: what it runs on. */
    explicit NAME_model(calque::span<const std::uint64_t> weights = {}, std::int32_t threads = 1) { create(weights, threads); }

    /* With the weights of a file, which the instance holds. */
    static NAME_model with_weights(const std::string &path, std::int32_t threads = 1) {
        std::ifstream file(path, std::ios::binary);
        std::vector<char> bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
        if (!file || bytes.size() != NAME_weights_bytes()) throw calque::error(CALQUE_WEIGHTS, "expected the weights of NAME in " + path);
        NAME_model made(std::vector<std::uint64_t>((bytes.size() + 7) / 8), bytes, threads);
        return made;
    }

    NAME_model(NAME_model &&) = default;
    NAME_model &operator=(NAME_model &&) = default;

    /* Run any program, with tensors that the library checks. */
    void run(std::int32_t program, calque::span<const calque_tensor> inputs, calque::span<const calque_tensor> outputs) {
        check(NAME_run(instance(), program, inputs.data(), static_cast<std::int32_t>(inputs.size()), outputs.data(),
                       static_cast<std::int32_t>(outputs.size())));
    }
@METHODS@
    /* State by its name, to be read or overwritten between runs. */
    template <class T> calque::span<T> state(const std::string &name) {
        const calque_spec *spec = nullptr;
        for (std::int32_t k = 0; void *data = NAME_state(instance(), k, &spec); k++)
            if (name == spec->name) {
                if (spec->dtype != calque::dtype_of<T>()) throw calque::error(CALQUE_DTYPE, "expected another type for the state " + name);
                return calque::span<T>(static_cast<T *>(data), calque::count_of(*spec));
            }
        throw std::out_of_range("expected the name of a state of NAME, got " + name);
    }

    /* How many threads it runs on: what was asked for, or less if the system gave less. */
    std::int32_t threads() const { return NAME_threads(instance()); }

    /* All state as it was exported. */
    void reset() { check(NAME_reset(instance())); }

    /* For the functions of NAME.h. */
    NAME *instance() const { return reinterpret_cast<NAME *>(memory_.get()); }

private:
    struct destroy {
        void operator()(void *memory) const {
            NAME_destroy(reinterpret_cast<NAME *>(memory));
            ::operator delete(memory, std::align_val_t(64));
        }
    };
    struct release {
        void operator()(void *memory) const { ::operator delete(memory, std::align_val_t(64)); }
    };

    NAME_model(std::vector<std::uint64_t> &&room, const std::vector<char> &bytes, std::int32_t threads) : held_(std::move(room)) {
        char *to = reinterpret_cast<char *>(held_.data());
        for (std::size_t k = 0; k < bytes.size(); k++) to[k] = bytes[k];
        create(held_, threads);
    }

    void create(calque::span<const std::uint64_t> weights, std::int32_t threads) {
        const std::size_t bytes = static_cast<std::size_t>(NAME_threads_bytes(threads));
        if (bytes == 0) throw calque::error(CALQUE_THREADS, NAME_text(CALQUE_THREADS));
        std::unique_ptr<void, release> block(::operator new(bytes, std::align_val_t(64)));
        NAME *made = nullptr;
        const std::int32_t code = NAME_create(block.get(), bytes, weights.data(), weights.size() ? NAME_weights_bytes() : 0, &made);
        if (code) throw calque::error(code, NAME_text(code));
        if (static_cast<void *>(made) != block.get()) throw calque::error(CALQUE_MEMORY, "expected an instance at the beginning of its memory");
        memory_.reset(block.release());
        const std::int32_t started = NAME_set_threads(instance(), threads);
        if (started && started != CALQUE_FEWER) check(started);
    }

    void check(std::int32_t code) const {
        if (code) throw calque::error(code, code == CALQUE_BUSY ? NAME_text(code) : NAME_error(instance()));
    }

    static void sized(std::size_t found, std::size_t wanted, const char *name) {
        if (found != wanted)
            throw calque::error(CALQUE_SHAPE, std::string("expected ") + std::to_string(wanted) + " numbers in " + name + ", got " + std::to_string(found));
    }

    std::vector<std::uint64_t> held_;
    std::unique_ptr<void, destroy> memory_;
};
#endif
